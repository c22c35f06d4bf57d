"""What a recipe needs and whether it can run: rules, layout, memory, disk and load time, without running anything."""
