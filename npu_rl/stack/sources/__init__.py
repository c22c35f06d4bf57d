"""Sources of objects for the store: git repositories, bundles and package indexes."""
