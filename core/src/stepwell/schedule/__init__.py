"""Requests, budgets and step plans."""
