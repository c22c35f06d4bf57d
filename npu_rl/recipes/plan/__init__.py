"""The plan of a recipe, without running anything: rules, layout, memory, disk and loading time."""
