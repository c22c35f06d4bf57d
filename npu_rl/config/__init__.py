"""Files that people write: YAML with `extends:`, a line for every value, and every fault at once."""
