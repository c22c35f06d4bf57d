"""Locks: the resolved manifest as one file, with an inclusion proof for each pin."""
