"""The container for a manifest: the Dockerfile of its image, and the docker command that starts it."""
