"""Reading pickles without running the code that they name.

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
_HEAVIEST = 1 << 16  # values of a tuple and of the tuples in it: the hash of one in another is a recursion
_FREE_WORK, _WORK_PER_BYTE = (
    50_000_000,
    20,
)  # values that are hashed or copied; .metadata has 0.9 for each byte
_FREE_MEMORY, _MEMORY_PER_BYTE = 400_000_000, 30  # bytes of all objects; .metadata has 20 for each byte
_VALUE, _SET = 64, 216  # bytes of an empty dict or an object, and of a set

_PUTS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_TO_MARK = {"APPENDS", "SETITEMS", "ADDITEMS", "POP_MARK"}
_MADE_TO_MARK = {"TUPLE", "LIST", "DICT", "FROZENSET"}
_CALLS = {"REDUCE", "NEWOBJ", "NEWOBJ_EX", "BINPERSID"}
_KEYED = {"DICT", "FROZENSET"}
_GROWING = {"LIST", "DICT"}
_EMPTY = {"EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET"}
_INTO = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS"}
_COSTLY = _INTO | _CALLS | _KEYED | _EMPTY | {"BUILD"}
_PAIRS = {"SETITEM", "SETITEMS"}
_ONE = [1]  # of all that is small and never grows
_TEXTS = (str, bytes)
_COMPARED = 1024  # bytes of text that take as long as a value to be compared; of an int 64 to be hashed
_TAKEN = {"APPEND": 1, "BUILD": 1, "SETITEM": 2, "PROTO": 0, "FRAME": 0, "STOP": 0}
_MADE = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "REDUCE": 2, "NEWOBJ": 2, "NEWOBJ_EX": 3}
_MADE |= {"BINPERSID": 1, "STACK_GLOBAL": 2}


class Inert:
    """Stand-in for an object that isn't needed, such as a run's arguments; only its name is kept."""

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


class Pickled:
    """An object whose attributes are read without running its class."""

    _attributes: dict[str, Any]

    def __new__(cls, *_arguments: Any) -> Pickled:
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
    """An OrderedDict that ignores attributes from a file, such as torch's `_metadata` or one named `get`."""

    def __init__(self) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        pass


class StandIn:
    """A function that a pickle may call but can't modify.

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
    """Return the object pickled in `data`.

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
            "A pickle names code that doesn't belong in a checkpoint",
            where=self._where,
            why=f"It names {module}.{name}. Nothing of the file was run.",
            hint="Don't load it with torch.load. Contact its author, or download it again from another source.",
        )

    def persistent_load(self, pid: Any) -> Any:
        if self._persistent is None:
            raise TensorError("Invalid pickle", where=self._where, why="It has a persistent id.")
        return self._persistent(pid)


def _screen(data: bytes, where: str) -> None:
    """Refuse pickles that cost far more than their size: huge memo indices and lengths, keys costly to hash.

    Tuples that hold one another twice, forty times over, are a hundred bytes, and the hash of the last visits 2**40
    values. A tuple of 32,768 values is named in three bytes, and hashed again for each key that it is.
    """
    weights = _Weights()
    most_work = _FREE_WORK + _WORK_PER_BYTE * len(data)
    most_memory = _FREE_MEMORY + _MEMORY_PER_BYTE * len(data)
    follow, push = weights.handlers.get, weights.push
    try:
        for opcode, argument, position in pickletools.genops(data):
            name = opcode.name
            weight = follow(name, push)(name, argument)
            if name in _REFUSED or (name in _SIZED and int(argument or 0) > len(data)) or weight > _HEAVIEST:
                raise TensorError(
                    "A pickle uses an opcode that doesn't belong in a checkpoint",
                    where=where,
                    why=f"{name} at byte {position}. Nothing of the file was run.",
                )
            if name in _COSTLY and (weights.work > most_work or weights.memory > most_memory):
                raise _costly(weights, position or 0, data, where)
        if weights.memory > most_memory:
            raise _costly(weights, len(data), data, where)
    except TensorError:
        raise
    except Exception as error:
        raise TensorError("Invalid pickle", where=where, why=f"{type(error).__name__}: {error}") from error


def _costly(weights: _Weights, position: int, data: bytes, where: str) -> TensorError:
    return TensorError(
        "A pickle takes too much time or memory",
        where=where,
        why=f"Its first {position} of {len(data)} bytes hash or copy {weights.work} values, and make "
        f"objects of {weights.memory} bytes. Nothing of the file was run.",
    )


class _Growing(list[int]):
    """The weight of an object that can still grow."""


class _Weights:
    """The unpickler's stack and memo, with the number of values in each object instead of the object.

    A number is in a list, since an object that is in the memo, too, may still grow.

    Attributes:
        handlers: By opcode, what does to the stack what it does and returns the weight of what it makes.
        work: Number of values that are hashed as keys, or copied by a call or as an object's state.
        memory: Bytes of the objects.
    """

    def __init__(self) -> None:
        self.work = 0
        self.memory = 0
        self._stack: list[list[int]] = []
        self._marks: list[int] = []
        self._memo: dict[int, list[int]] = {}
        self._shared: set[int] = set()
        self._late = 0  # values put into what others may have counted before: any call may copy them
        self.handlers: dict[str, Callable[[str, Any], int]] = {
            **dict.fromkeys(_PUTS, self._put),
            **dict.fromkeys(_GETS, self._get),
            **dict.fromkeys(_MADE, self._make_some),
            **dict.fromkeys(_MADE_TO_MARK, self._make_to_mark),
            **dict.fromkeys(_TAKEN, self._take_some),
            **dict.fromkeys(_TO_MARK, self._take_to_mark),
            **dict.fromkeys(_EMPTY, self._push_container),
            "BUILD": self._build,
            "MARK": self._mark,
            "POP": self._pop,
            "DUP": self._double,
        }

    def _put(self, name: str, argument: Any) -> int:
        self._memo[len(self._memo) if name == "MEMOIZE" else int(argument)] = self._stack[-1]
        return 0

    def _get(self, _name: str, argument: Any) -> int:
        self._push_again(self._memo.get(int(argument), _ONE))
        return 0

    def _mark(self, _name: str, _argument: Any) -> int:
        self._marks.append(len(self._stack))
        return 0

    def _pop(self, _name: str, _argument: Any) -> int:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()
        return 0

    def _double(self, _name: str, _argument: Any) -> int:
        self._push_again(self._stack[-1])
        return 0

    def _push_again(self, value: list[int]) -> None:
        if value.__class__ is _Growing:
            self._shared.add(id(value))
        self._stack.append(value)

    def push(self, _name: str, argument: Any) -> int:
        self.memory += _VALUE
        size = 0
        if argument.__class__ in _TEXTS:
            size = len(argument)
        elif argument.__class__ is int:  # the hash of an int is not kept, as that of a text is
            size = argument.bit_length() << 1
        self._stack.append(_ONE if size < _COMPARED else [1 + size // _COMPARED])
        return 0

    def _push_container(self, name: str, _argument: Any) -> int:
        self.memory += _SET if name == "EMPTY_SET" else _VALUE
        self._stack.append(_Growing([1]))
        return 0

    def _make_some(self, name: str, _argument: Any) -> int:
        """Replace several values by one. The result of a call may be a tuple of its arguments."""
        stack = self._stack
        count = _MADE[name]
        inside = 0
        for _ in range(count):
            inside += stack.pop()[0]
        self.memory += _VALUE + 8 * count
        if name in _CALLS:
            self.work += inside + self._late
            stack.append(_Growing([1 + inside]))
        else:
            stack.append([1 + inside])
        return 1 + inside

    def _make_to_mark(self, name: str, _argument: Any) -> int:
        start, stack = self._marks.pop(), self._stack
        inside = sum([value[0] for value in stack[start:]])
        self.memory += _VALUE + 8 * (len(stack) - start)
        if name in _KEYED:
            self.work += inside
        stack[start:] = [_Growing([1 + inside]) if name in _GROWING else [1 + inside]]
        return 1 + inside

    def _build(self, _name: str, _argument: Any) -> int:
        inside = self._stack.pop()[0]
        self.work += inside + self._late
        self._grow(inside)
        return 0

    def _take_some(self, name: str, _argument: Any) -> int:
        if _TAKEN[name]:
            self._take(name, len(self._stack) - _TAKEN[name])
        return 0

    def _take_to_mark(self, name: str, _argument: Any) -> int:
        self._take(name, self._marks.pop())
        return 0

    def _take(self, name: str, start: int) -> None:
        """Move values from the top of the stack into the object below them."""
        stack = self._stack
        taken = [value[0] for value in stack[start:]]
        del stack[start:]
        if name not in _INTO or not stack:
            return
        inside = sum(taken)
        if name in _PAIRS:
            self.work += sum(taken[::2])
            self.memory += 100 * len(taken)
        else:
            self.work += inside if name == "ADDITEMS" else 0
            self.memory += 8 * len(taken)
        self._grow(inside)

    def _grow(self, inside: int) -> None:
        grown = self._stack[-1]
        if grown.__class__ is _Growing:
            grown[0] += inside
            if id(grown) in self._shared:
                self._late += inside
