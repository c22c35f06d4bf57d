"""Sources of objects: git repositories, bundles and package indexes, from which objects go into the store."""
