"""`patches port`: the patches of a component carried to another version, from the fetch to the new patchset."""
