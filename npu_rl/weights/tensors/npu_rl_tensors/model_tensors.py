"""The tensors of a config.json's model, built by transformers on the meta device without allocating memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .hf_checkpoint import CONFIG, read_object
from .memory_limit import memory_limit
from .tensor_error import TensorError
from .worker import require


def model_tensors(arguments: dict[str, Any], progress: Callable[[int], None]) -> dict[str, Any]:  # noqa: ARG001
    """Return the names and shapes of a model's tensors.

    The classes are those of the installed transformers; code that comes with the checkpoint does not run.

    Args:
        arguments: `folder`, with config.json.

    Returns:
        `transformers`: its version. `model`: the class; None if this transformers has none for the model_type, and
        then no more. `tensors`: shape by name. `tied`: names that may be missing, since they share another's values.
        `ignored`: patterns of names that the class ignores in a checkpoint.
    """
    folder = Path(arguments["folder"])
    values = read_object(folder / CONFIG)
    transformers = require("transformers")
    found: dict[str, Any] = {"transformers": transformers.__version__, "model": None}
    kind = values.get("model_type")
    if not isinstance(kind, str):
        return found
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    if kind not in CONFIG_MAPPING:
        return found
    try:
        config = CONFIG_MAPPING[kind].from_dict(
            {k: v for k, v in values.items() if k not in _NOT_OF_THE_MODEL}
        )
        if type(config) not in AutoModelForCausalLM._model_mapping:
            return found
        with memory_limit(0), torch.device("meta"):  # a config.json may ask for a million layers
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001  of transformers' own code for each model, with any values
        raise TensorError(
            "transformers can't make the model of config.json",
            where=str(folder / CONFIG),
            why=f"transformers {transformers.__version__}: {type(error).__name__}: {error}",
        ) from None
    tied = getattr(model, "_tied_weights_keys", None) or []
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or []
    return {
        **found,
        "model": type(model).__name__,
        "tensors": {name: list(tensor.shape) for name, tensor in model.state_dict().items()},
        "tied": sorted(tied) if config.tie_word_embeddings else [],
        "ignored": [pattern for pattern in ignored if _compiles(pattern)],
    }


# A quantization would be set up, and an `auto_map` names code of the checkpoint.
_NOT_OF_THE_MODEL = ("quantization_config", "auto_map")


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
