"""A runner of several ranks: each a process with a part of the model, all told the same plans, their answers one."""
