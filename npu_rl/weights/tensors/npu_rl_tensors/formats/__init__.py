"""Read any part of any tensor of a checkpoint: safetensors, FP8, `torch_dist`, and Megatron's legacy files."""
