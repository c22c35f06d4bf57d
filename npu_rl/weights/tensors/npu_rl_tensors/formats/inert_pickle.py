"""Pickles read without importing or calling what they name. Doesn't need torch.

`.metadata`, `common.pt` and `.pt` files are pickles, and a pickle may name any function of Python with the arguments to
call it with. Here each name of a short list becomes a class that keeps what it is given, and any other is refused.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, TypeGuard

from ..memory_limit import memory_limit
from ..tensor_error import TensorError

LARGEST = 1 << 30  # bytes of one pickle; .metadata of DeepSeek-V3 has about 20 MB
# Of torch's own files, and of what trainers save beside tensors: arguments, states of random numbers, Megatron-core's
# plan of each rank (dist_checkpointing/strategies/state_dict_saver.py:144@core_v0.12.1).
_MODULES = {
    *("torch", "torch._tensor", "torch._utils", "torch.serialization", "torch.storage"),
    *("_codecs", "_io", "argparse", "collections", "pathlib"),
}
_PACKAGES = ("torch.distributed.", "megatron", "mindspeed", "numpy")
_BUILTINS = {"dict": dict, "set": set}  # no file can change these


class Inert:
    """An object of a pickle: its class's name, the arguments it was made with, and its state."""

    name = ""  # module and name

    def __new__(cls, *args: Any, **_keywords: Any) -> Inert:
        """Keep the arguments."""
        made = super().__new__(cls)
        made.args = args
        made.state = None
        return made

    args: tuple[Any, ...]
    state: Any

    def __init__(self, *_args: Any, **_keywords: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def get(self, attribute: str) -> Any:
        """Return an attribute in the state; None without it."""
        return attribute_of(self.state, attribute)


def attribute_of(state: Any, attribute: str) -> Any:
    """Return an attribute in a pickled state, which is a dict or a pair of them; None without it."""
    parts = state if isinstance(state, tuple) else (state,)
    return next((part[attribute] for part in parts if isinstance(part, dict) and attribute in part), None)


class _Mapping(dict[Any, Any]):
    """An OrderedDict or defaultdict."""

    def __init__(self, *_args: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        pass


class _Nested(Inert):
    """A nested class, which pickle protocol 2 names by getattr."""

    def __new__(cls, *_args: Any) -> Any:
        return type("Inert", (Inert,), {})


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in ("builtins", "__builtin__") and name == "getattr":
            return type("Nested", (_Nested,), {})
        if module in ("builtins", "__builtin__") and name in _BUILTINS:
            return _BUILTINS[name]
        if (module, name) == ("torch", "Size"):
            return tuple
        if module == "collections" and name in ("OrderedDict", "defaultdict"):
            return type("Mapping", (_Mapping,), {})
        if module not in _MODULES and not module.startswith(_PACKAGES):
            raise pickle.UnpicklingError(f"it names {ascii(f'{module}.{name}')[1:-1][:200]}")
        return type("Inert", (Inert,), {"name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        return pid


def read_pickle(data: bytes, where: str) -> Any:
    """Return the content of a pickle, of builtin types and `Inert`.

    Raises:
        TensorError: If it is damaged, names what has no place in a checkpoint, or takes 4 GiB to open.
    """
    try:
        with memory_limit(len(data)):
            return _Reader(io.BytesIO(data)).load()
    except MemoryError:
        why = "It takes more than 4 GiB of memory to open."
    except Exception as error:  # noqa: BLE001  any, of the methods that a damaged pickle calls
        why = f"{type(error).__name__}: {str(error)[:500]}"
    raise TensorError(
        "A pickle is damaged, or has what doesn't belong in a checkpoint",
        where=where,
        why=f"{why}\nNothing in the file was run.",
        hint="Copy or download it again.",
    )


def is_made(value: Any, name: str) -> TypeGuard[Inert]:
    """Return whether a value was made by the class or function with this name."""
    return isinstance(value, Inert) and value.name.rpartition(".")[2] == name
