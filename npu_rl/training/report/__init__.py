"""A self-contained HTML report on a run, gathered from its record and rendered without a network."""
