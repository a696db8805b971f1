"""Which of several engines serves a request, and one client for them all."""
