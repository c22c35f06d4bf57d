"""`patches port`: a component's patches carried to another version."""
