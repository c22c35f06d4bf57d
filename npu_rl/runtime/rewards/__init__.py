"""Reward functions for rehearsals: cheap, bounded, and easy to see rise."""
