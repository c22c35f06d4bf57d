"""The checks of a recipe that all commands share: keys, values, files, environment and plan."""
