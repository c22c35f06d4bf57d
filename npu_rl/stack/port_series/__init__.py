"""Porting of a component's patches to another version, from the fetch to the new patchset."""
