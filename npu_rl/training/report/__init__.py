"""One self-contained HTML page on a run: gathered from its record, rendered without a network."""
