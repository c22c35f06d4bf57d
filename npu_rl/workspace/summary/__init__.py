"""Changes by a stack's patches and pull requests in Python's terms, from the syntax trees before and after."""
