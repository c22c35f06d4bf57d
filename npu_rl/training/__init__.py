"""Training: one run of a recipe, its processes, its record and its monitoring.

No module here imports torch or Ray; they are in the training interpreter, which runs in other processes.
"""
