"""The container for a manifest: the Dockerfile of its image, and the command that starts it on a machine."""
