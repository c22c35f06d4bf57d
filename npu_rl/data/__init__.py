"""Datasets: downloaded, prepared, and checked against a recipe."""
