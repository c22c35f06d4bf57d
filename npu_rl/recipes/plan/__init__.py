"""The plan of a recipe: rules, layout, memory, disk and loading time, computed without running it."""
