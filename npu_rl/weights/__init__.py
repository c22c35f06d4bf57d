"""Checkpoints: casts, checks, conversions, and the tensors inside of them."""
