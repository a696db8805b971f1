"""A double of the package: of its expert parallelism, as far as the plugin uses it."""
