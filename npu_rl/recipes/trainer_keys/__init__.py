"""The keys and values that a tree's trainer reads, with the line of code that reads each."""
