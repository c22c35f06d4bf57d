"""Training runs: their processes, records and monitoring, and the code injected into their workers."""
