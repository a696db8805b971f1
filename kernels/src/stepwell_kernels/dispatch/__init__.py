"""Mixture-of-experts over ranks: what sends tokens to experts, what computes them there, and how fast it is."""
