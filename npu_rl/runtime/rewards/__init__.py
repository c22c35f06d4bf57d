"""Reward functions for rehearsals: cheap and bounded, with a rise that is easy to see."""
