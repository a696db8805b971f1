"""The two pluggy markers of the project."""

import pluggy

PROJECT = "stepwell"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
