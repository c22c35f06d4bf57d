"""The packages that a workspace needs for training: its manifest, and the install command."""
