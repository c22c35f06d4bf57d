"""Git: running its processes, its messages and environment, and its object model."""
