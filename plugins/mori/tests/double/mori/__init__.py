"""A double of the library: ranks are threads, and the wire is memory."""
