"""The folder that `setup` lays, and what proves and describes it."""
