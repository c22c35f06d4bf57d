"""Name of the adaptation, in a module without imports."""

SLUG = "rollout-offload"
