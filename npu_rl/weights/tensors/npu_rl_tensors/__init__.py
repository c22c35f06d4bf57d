"""Model weight files: formats, FP8, and the casts, conversions and comparisons of their tensors.

Runs in the training interpreter, without npu-rl: relative imports, the standard library, and torch. Modules that
import torch do so at their top; `errors`, `safetensors_file` and `hf_checkpoint` do not, and npu-rl imports them too.
Nothing here unpickles or runs code that comes with a checkpoint.
"""
