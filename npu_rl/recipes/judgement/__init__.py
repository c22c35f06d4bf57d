"""The judgement of a recipe that every command prints: keys, values, files, environment and plan."""
