"""Comparison of two stacks for `manifests diff`, by their locks or by their manifests alone."""
