"""The weights and checkpoints that a recipe's trainer loads, and the commands that make them."""
