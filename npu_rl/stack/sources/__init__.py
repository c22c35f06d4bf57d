"""Sources of objects for the store: git repositories and package indexes."""
