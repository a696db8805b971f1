"""Which pages hold which prefix on device, host and storage, and who owns them. Page ids and bytes only."""
