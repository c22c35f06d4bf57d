"""Recipes: what a person says about one run, and how it becomes the trainer's own command line."""
