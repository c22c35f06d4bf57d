"""From a manifest to one tree: sources, merges, patches and the lock."""
