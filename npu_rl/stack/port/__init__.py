"""`patches port`: a rebase of a component's patches onto another version, in a plain git repository."""
