"""Training: the run, its record, what is told about it while it lasts, and the rehearsal.

Nothing in here imports torch or Ray: they live in the training interpreter, which is another process.
"""
