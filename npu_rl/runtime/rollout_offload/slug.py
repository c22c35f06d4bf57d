"""The adaptation's name, apart from what needs it."""

SLUG = "rollout-offload"
