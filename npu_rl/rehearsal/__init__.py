"""Rehearsal: small runs of a recipe with its real code on a machine without NPUs.

The level *imports* imports what a step imports and patches change. *layout* forms the recipe's process groups at their
real sizes and trains a tiny model over a small layout. *train* and *rollout* run the trainer with the recipe scaled
down. All of them run in the training interpreter and write nothing into the workspace's code.
"""
