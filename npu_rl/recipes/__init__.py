"""Recipes: their parsing, their keys, and the checks whether a recipe fits its stack and machines."""
