"""A trace through the real brain, cache and policies, on a virtual clock: the other shell around `brain`."""
