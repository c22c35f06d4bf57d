"""Sizes used by plans and rehearsals: the model's, its parallelism's and those of a step's batches."""
