"""The keys and values that the trainer of a tree reads, each with the line of code that reads it."""
