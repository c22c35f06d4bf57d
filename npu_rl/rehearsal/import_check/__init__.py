"""`verify --imports`: what an interpreter makes of a workspace's tree, and whether its packages are the locked ones."""
