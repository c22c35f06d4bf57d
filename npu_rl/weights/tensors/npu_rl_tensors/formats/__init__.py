"""Reading any part of a checkpoint's tensors: safetensors, FP8, `torch_dist`, and Megatron's legacy files."""
