"""Estimates of what lies in a device's and in a host's memory, phase by phase of a step."""
