"""The one judgement of a recipe that all commands print: keys, values, files, environment and plan."""
