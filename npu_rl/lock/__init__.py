"""The lock: what a manifest was resolved to, as one file that says everything and proves its pins."""
