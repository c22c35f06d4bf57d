"""Sizes that plans and rehearsals compute with: of the model, its parallelism and the batches of a step."""
