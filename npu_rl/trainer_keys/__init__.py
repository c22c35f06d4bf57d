"""Which keys and values the trainer of a tree reads, and which line of its code reads each."""
