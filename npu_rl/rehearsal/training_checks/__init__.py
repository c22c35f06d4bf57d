"""Checks of a rehearsed training: equal weights, similar probabilities, new noise, and resuming."""
