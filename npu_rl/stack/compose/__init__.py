"""Composing the code tree: merges, patches and assembly, as operations on git trees without a work tree."""
