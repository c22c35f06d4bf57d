"""Environment variables of a recipe: who reads each, and the values that it takes."""
