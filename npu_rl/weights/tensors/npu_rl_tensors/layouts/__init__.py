"""Which tensor of the Hugging Face model lies where in Megatron's checkpoints, as tables."""
