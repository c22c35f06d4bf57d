"""Files of a workspace that `setup --build` made there: what the receipt has of them, and how they get in place."""
