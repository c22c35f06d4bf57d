"""A container of a manifest: the Dockerfile of its image, and the line that starts it on a kind of machine."""
