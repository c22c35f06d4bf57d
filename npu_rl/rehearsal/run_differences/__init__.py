"""Differences between a rehearsal and the run that it is for."""
