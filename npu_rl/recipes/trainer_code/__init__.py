"""Analysis of an assembled tree's code (modules, classes, Hydra files) without importing or running it."""
