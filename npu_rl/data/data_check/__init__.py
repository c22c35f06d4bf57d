"""What of the `data` commands needs a recipe, a tree or a tokenizer: the check, lengths, MindSpeed-RL's files."""
