"""The code of an assembled tree as text: modules, classes, Hydra's files. Nothing of it is imported or run."""
