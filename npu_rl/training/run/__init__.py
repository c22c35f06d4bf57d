"""Training: one run of a recipe, what is settled before it and its end.

No module here imports torch or Ray; they are in the training interpreter, which runs in other processes.
"""
