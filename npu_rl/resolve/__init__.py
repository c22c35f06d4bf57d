"""`lock` thinks: refs to ids, pull requests to records, patches to trees. `setup` then only does."""
