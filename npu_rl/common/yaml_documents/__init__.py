"""Configuration files in YAML: `extends:`, the source line of every value, and all errors in one report."""
