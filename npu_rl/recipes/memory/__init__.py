"""Estimates of device and host memory in each phase of a step."""
