"""The part of the `data` commands that needs a recipe, a tree or a tokenizer: checks, lengths, MindSpeed-RL's files."""
