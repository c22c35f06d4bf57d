"""Summary of a stack's patches and pull requests as changed Python definitions."""
