"""Monitoring of a run: progress, metrics, alarms, and explanations of failures."""
