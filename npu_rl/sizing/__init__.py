"""Sizes that plans and rehearsals count with: the model's, the parallelism's, a step's batches."""
