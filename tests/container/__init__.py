"""`npu-rl container`: what its Dockerfiles say and do, and the line that starts a container."""
