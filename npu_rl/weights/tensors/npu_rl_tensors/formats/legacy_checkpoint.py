"""Megatron's legacy checkpoints: `iter_*/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt`, one file for each rank.

The names are those of `get_checkpoint_name` (megatron/training/checkpointing.py@core_r0.8.0): the
pipeline rank is there with more than one stage, and the expert rank with more than one group. What the trainer of
deepseek-v3-cann saves has the same folders, and in each a `model.pt` with a list of models, one for each virtual stage
(verl/utils/checkpoint/megatron_checkpoint_manager.py@54c9b73).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..layouts.placements import RANK_FILE
from ..regular_file import read_regular
from ..tensor_error import TensorError
from ..untrusted_values import odd_name
from .tensor_views import OpenFiles, TensorView, TensorViews
from .torch_files import SavedFile

TRACKER = "latest_checkpointed_iteration.txt"
_LONGEST = 64  # bytes of the tracker
_FILES = (RANK_FILE, "model.pt")
_FOLDER = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3}))?(?:_(\d{3}))?")


def is_legacy_checkpoint(folder: Path) -> bool:
    """Return whether a folder looks like a legacy checkpoint, or like one of its iterations."""
    return (folder / TRACKER).is_file() or any(folder.glob("mp_rank_*"))


def iteration_folder(folder: Path) -> Path:
    """Return the iteration folder that the tracker names (may be `release`), or `folder` if it is one.

    Raises:
        TensorError: If the tracker names none that is there.
    """
    tracker = folder / TRACKER
    if not tracker.is_file():
        return folder
    try:
        text = read_regular(tracker, _LONGEST).decode("utf-8", "replace").strip()
    except ValueError as error:
        raise _invalid(tracker, str(error)) from None
    if text != "release" and not (text.isdigit() and len(text) < 10):
        raise _invalid(tracker, f"It has {text[:40]!r}, which is not an iteration.")
    found = folder / ("release" if text == "release" else f"iter_{int(text):07d}")
    if not found.is_dir():
        raise _invalid(tracker, f"It names {found.name}, which is not there.")
    return found


def rank_numbers(folder: Path) -> dict[tuple[int, ...], Path]:
    """Return an iteration's files, keyed by the rank numbers (tp), (tp, second) or (tp, pp, ep).

    Raises:
        TensorError: If there is none, or a folder lacks its file.
    """
    found: dict[tuple[int, ...], Path] = {}
    for entry in sorted(folder.glob("mp_rank_*")):
        match = _FOLDER.fullmatch(entry.name)
        if match is None:
            raise _invalid(
                entry, "A rank's folder is named mp_rank_TT, mp_rank_TT_PPP or mp_rank_TT_PPP_EEE."
            )
        path = next((entry / name for name in _FILES if (entry / name).is_file()), None)
        if path is None:
            raise _invalid(entry / RANK_FILE, "The file is missing.")
        found[tuple(int(number) for number in match.groups() if number is not None)] = path
    if not found:
        raise _invalid(folder, "It has no mp_rank_* folder.")
    if len({len(numbers) for numbers in found}) > 1:
        raise _invalid(
            folder, "Some of its ranks have a stage or an expert group in their names, and some do not."
        )
    return found


def read_rank_file(path: Path, files: OpenFiles) -> TensorViews:
    """Open the tensors under "model" in a rank's file, without reading values.

    Raises:
        TensorError: If the file is not torch.save's, is truncated, or names code that doesn't belong in it.
    """
    saved = SavedFile(files, path)
    model = _model(saved.content, path)
    tensors: dict[str, TensorView] = {}
    objects: list[str] = []
    odd = odd_name(model)
    if odd is not None:
        raise _invalid(path, f"It names a tensor {odd}.")
    for name, value in model.items():
        tensor = saved.tensor(value)
        if tensor is not None:
            tensors[name] = tensor.view(files, name)
        else:
            objects.append(name)
    return TensorViews(tensors, objects=tuple(objects))


def _model(content: Any, path: Path) -> dict[str, Any]:
    """Return the model's tensors by name."""
    if isinstance(content, list):
        model = content[0] if content else None
        virtual = len(content) > 1
    else:
        model = content.get("model") if isinstance(content, dict) else None
        virtual = isinstance(content, dict) and any(re.fullmatch(r"model\d+", str(key)) for key in content)
    if virtual:
        raise _invalid(path, "It has virtual pipeline stages, which are not supported.")
    if not isinstance(model, dict):
        raise _invalid(path, "It has no 'model'.")
    return model


def _invalid(path: Path, why: str) -> TensorError:
    return TensorError("Invalid legacy checkpoint", where=str(path), why=why)
