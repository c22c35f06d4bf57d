"""Environment variables of a recipe: the code that reads each, and its accepted values."""
