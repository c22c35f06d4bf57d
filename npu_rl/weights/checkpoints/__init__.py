"""Casting, checking and converting model weights; workers in an interpreter with torch read the tensors."""
