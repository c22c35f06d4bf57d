"""`verify --imports`: checks of imports from a workspace's tree, and of the interpreter's packages."""
