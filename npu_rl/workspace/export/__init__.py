"""`patches export`: the user's commits in a workspace as patches beside its manifest."""
