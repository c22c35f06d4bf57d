"""What the patches and pull requests of a stack change, in Python's terms, from the syntax trees before and after."""
