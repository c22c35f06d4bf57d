"""The proof that a workspace equals its lock; where it does not, what differs and whose it is."""
