"""From a downloaded dataset to the files that a trainer loads. Knows no recipe, no tree and no tokenizer."""
