"""The weights and checkpoints of a recipe: what its trainer loads, what a folder has, and the commands that make it."""
