"""The checkpoints of a run: which steps were saved, what they hold, and which one a run resumes from."""
