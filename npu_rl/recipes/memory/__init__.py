"""Estimates of the memory of a device and of a host in each phase of a step."""
