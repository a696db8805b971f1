"""The contracts: one file a role; a docstring here is the law for every implementation."""
