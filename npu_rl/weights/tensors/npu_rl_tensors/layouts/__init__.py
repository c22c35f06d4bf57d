"""Tables that map Hugging Face tensors to Megatron checkpoints."""
