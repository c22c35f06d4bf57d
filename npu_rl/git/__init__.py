"""Git: the processes that run it, and its object model."""
