"""Tables of the places of Hugging Face tensors in Megatron's checkpoints."""
