"""Training: one run of a recipe, from the checks before it to its outcome.

No module here imports torch or Ray; they are in the training interpreter, which runs in other processes.
"""
