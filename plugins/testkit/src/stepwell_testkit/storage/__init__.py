"""The kit of storages."""

from stepwell_testkit.storage.kit import StorageKit

__all__ = ["StorageKit"]
