"""Adaptation converter-expert-parallel: DeepSeek-V3 from Hugging Face to Megatron-core, each rank its own share.

verl's converter loads the whole model in every process, knows no expert parallelism and takes all ranks as pipeline
stages (scripts/converter_hf_to_mcore.py:441-487@55e3c5b). Here PP x EP ranks each read their own tensors from the
safetensors files and write them with Megatron-core's `dist_checkpointing`; verl loads the result at any layout.
"""

from .convert import Conversion, convert
from .errors import ConversionError
from .script import SLUG, add_arguments, convert_instead, layout_of

__all__ = [
    "SLUG",
    "Conversion",
    "ConversionError",
    "add_arguments",
    "convert",
    "convert_instead",
    "layout_of",
]
