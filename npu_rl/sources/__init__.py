"""Sources bring objects into the store. They deliver; they decide nothing."""
