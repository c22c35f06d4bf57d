"""`manifests diff`: two stacks compared, by their locks or as their manifests are written."""
