"""Products of `setup --build` in a workspace: their entries in the receipt, and their placement."""
