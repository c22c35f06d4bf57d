"""Verification that a workspace equals its lock, with the component and hunk of every difference."""
