"""Porting of a component's patches to another version, for `patches port`."""
