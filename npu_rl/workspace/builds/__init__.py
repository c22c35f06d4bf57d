"""`setup --build`: the manifest's build commands, run on copies of their components, and what they made."""
