"""Checks of patches before a lock applies them: format, order, and where they apply. Only `--fix` writes."""
