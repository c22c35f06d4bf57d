"""Recipes, the code that reads them, and the judgement of whether they fit."""
