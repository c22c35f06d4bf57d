"""The packages that a workspace trains with: its manifest, and the command that installs them."""
