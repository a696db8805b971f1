"""The two error families: what the user must mend, and what a plugin did wrong."""


class StepwellError(Exception):
    """Base of every error that Stepwell raises on purpose."""


class ConfigError(StepwellError):
    """A mistake of the user: one sentence with what, where it came from, and what to do. Exit status 2."""


class PluginError(StepwellError):
    """A plugin broke its contract; the message names the plugin and its distribution."""


class PeerLost(PluginError):
    """Another rank is gone, or was silent for too long; nothing further can be exchanged with the ranks."""


class AuditError(StepwellError):
    """A page has no owner, two owners, or a count that disagrees with its owners."""
