"""Recipes: the file that describes one run, and how it becomes the trainer's command line."""
