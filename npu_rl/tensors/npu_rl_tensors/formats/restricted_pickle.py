"""Read pickles without running anything that they name.

`.metadata`, `common.pt` and `.pt` files are pickles, and a pickle may name any function of Python with the arguments to
call it with. Here a global is one of a short list of stand-ins that only keep what they are given; nothing is imported
on behalf of a file, and any other name stops the reading.
"""

from __future__ import annotations

import gc
import io
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import FunctionType
from typing import Any

from ..tensor_error import TensorError

Globals = Mapping[tuple[str, str], Any]
"""What stands for a global of a file: (module, name) to a class or function of ours."""

LARGEST = 1 << 30  # bytes of one pickle; .metadata of DeepSeek-V3 has about 20 MB
_REFUSED = {"INST", "OBJ", "EXT1", "EXT2", "EXT4", "PERSID", "BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER"}
_SMALL = 1024  # bytes of a pickle, and number of them, that are screened once
_screened: set[bytes] = set()
_SIZED = {"LONG_BINPUT", "PUT"}
_HEAVIEST = (
    1 << 16
)  # values of a tuple and of the tuples in it: as a key each is hashed, a value named twice twice

_PUTS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_TO_MARK = {"APPENDS", "SETITEMS", "ADDITEMS", "POP_MARK"}
_MADE_TO_MARK = {"TUPLE", "LIST", "DICT", "FROZENSET"}
_TAKEN = {"APPEND": 1, "BUILD": 1, "SETITEM": 2, "PROTO": 0, "FRAME": 0, "STOP": 0}
_MADE = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "REDUCE": 2, "NEWOBJ": 2, "NEWOBJ_EX": 3}
_MADE |= {"BINPERSID": 1, "STACK_GLOBAL": 2}


class Inert:
    """An object that is not needed, such as an argument of the run that wrote the file: kept as its name only."""

    of = ""

    def __new__(cls, *_arguments: Any, **_keywords: Any) -> Inert:
        """Drop the arguments."""
        return object.__new__(cls)

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __repr__(self) -> str:
        return f"<{self.of}>"


class Record:
    """An object whose attributes are read, whatever its class does with them elsewhere."""

    _attributes: dict[str, Any]

    def __new__(cls, *_arguments: Any) -> Record:
        """Drop the arguments."""
        made = object.__new__(cls)
        made._attributes = {}  # not its own: a file could name one of them `get`
        return made

    def __init__(self, *_arguments: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict) and all(isinstance(name, str) for name in state):
            self._attributes.update(state)
        else:
            self._attributes["state"] = state

    def get(self, name: str) -> Any:
        """Return an attribute, or None."""
        return self._attributes.get(name)


class Ordered(OrderedDict[Any, Any]):
    """An OrderedDict without what a file sets on it: a `_metadata` of torch, or an attribute named `get`."""

    def __setstate__(self, state: Any) -> None:
        pass


class StandIn:
    """A function of ours in a file's hands: it can be called, and nothing of it can be set.

    The opcode BUILD sets attributes of whatever it is given, and a function's defaults are attributes: one file would
    change how the next is read.
    """

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function."""
        return self.function(*arguments, **keywords)

    def __setstate__(self, state: Any) -> None:
        raise ValueError("an attribute of a function")


stand_in = lru_cache(maxsize=None)(StandIn)
"""Return the StandIn of a function, always the same."""


def read_pickle(
    data: bytes,
    where: str,
    known: Globals,
    *,
    inert: tuple[str, ...] = (),
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """Return what `data` holds.

    Args:
        data: The pickle.
        where: The file, for errors.
        known: Stand-ins by module and name.
        inert: Modules (and all below them) whose globals are read as `Inert`.
        persistent: What stands for a persistent id, such as a storage; without it they are refused.

    Raises:
        TensorError: If it names another global, uses an opcode that no such file needs, or is damaged.
    """
    if len(data) > LARGEST:
        raise TensorError(
            "A pickle is too large", where=where, why=f"It has {len(data)} bytes of at most {LARGEST}."
        )
    if len(data) > _SMALL:
        _screen(data, where)
    elif data not in _screened:  # the same few bytes describe each of thousands of tensors of one shape
        _screen(data, where)
        if len(_screened) < _SMALL:
            _screened.add(data)
    reader = _Reader(data, where, known, inert, persistent)
    collecting = gc.isenabled()
    gc.disable()  # a million new objects are walked through again and again, and none is garbage
    try:
        return reader.load()
    except TensorError:
        raise
    except Exception as error:
        raise TensorError("Invalid pickle", where=where, why=f"{type(error).__name__}: {error}") from error
    finally:
        if collecting:
            gc.enable()


class _Reader(pickle.Unpickler):
    def __init__(
        self,
        data: bytes,
        where: str,
        known: Globals,
        inert: tuple[str, ...],
        persistent: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._where, self._known, self._inert, self._persistent = where, known, inert, persistent
        self._made: dict[str, type[Inert]] = {}

    def find_class(self, module: str, name: str) -> Any:
        found = self._known.get((module, name))
        if found is not None:
            return stand_in(found) if isinstance(found, FunctionType) else found
        if any(module == one or module.startswith(f"{one}.") for one in self._inert):
            full = f"{module}.{name}"
            if full not in self._made:
                self._made[full] = type("Inert", (Inert,), {"of": full})
            return self._made[full]
        raise TensorError(
            "A pickle names code that has no place in a checkpoint",
            where=self._where,
            why=f"It names {module}.{name}. Nothing of the file was run.",
            hint="Don't load it with torch.load. Ask who wrote it, or download it again from another source.",
        )

    def persistent_load(self, pid: Any) -> Any:
        if self._persistent is None:
            raise TensorError("Invalid pickle", where=self._where, why="It has a persistent id.")
        return self._persistent(pid)


def _screen(data: bytes, where: str) -> None:
    """Refuse what makes an unpickler take memory or time beyond the file's size: a memo index or a length, nested keys.

    Tuples that hold one another twice, forty times over, are a hundred bytes, and the hash of the last visits 2**40
    values.
    """
    weights = _Weights()
    try:
        for opcode, argument, position in pickletools.genops(data):
            name = opcode.name
            weight = weights.follow(name, argument)
            if name in _REFUSED or (name in _SIZED and int(argument or 0) > len(data)) or weight > _HEAVIEST:
                raise TensorError(
                    "A pickle uses an opcode that has no place in a checkpoint",
                    where=where,
                    why=f"{name} at byte {position}. Nothing of the file was run.",
                )
    except TensorError:
        raise
    except Exception as error:
        raise TensorError("Invalid pickle", where=where, why=f"{type(error).__name__}: {error}") from error


class _Weights:
    """The unpickler's stack and memo, with the number of values of each tuple in place of what is there."""

    def __init__(self) -> None:
        self._stack: list[int] = []
        self._marks: list[int] = []
        self._memo: dict[int, int] = {}

    def follow(self, name: str, argument: Any) -> int:
        """Do what an opcode does, and return the weight of what it makes."""
        stack = self._stack
        if name in _PUTS:
            self._memo[len(self._memo) if name == "MEMOIZE" else int(argument)] = stack[-1]
        elif name in _GETS:
            stack.append(self._memo.get(int(argument), 1))
        elif name in _MADE:
            return self._make(len(stack) - _MADE[name])
        elif name in _TAKEN:
            if _TAKEN[name]:
                del stack[-_TAKEN[name] :]
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in _MADE_TO_MARK:
            return self._make(self._marks.pop(), hashed=name == "TUPLE")
        elif name in _TO_MARK:
            del stack[self._marks.pop() :]
        elif name == "POP":
            if self._marks and self._marks[-1] == len(stack):
                self._marks.pop()
            else:
                stack.pop()
        else:
            stack.append(stack[-1] if name == "DUP" else 1)
        return 0

    def _make(self, start: int, *, hashed: bool = True) -> int:
        """Put one value in place of those from `start` on; what a call makes may be a tuple of its arguments."""
        weight = 1 + sum(self._stack[start:]) if hashed else 1
        self._stack[start:] = [weight]
        return weight
