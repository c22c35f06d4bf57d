"""The workspace: a lock's tree on disk, its receipt, and the proof that the one is the other."""
