"""What a stand-in raises for what it has no CPU version of. Standard library only."""

from __future__ import annotations


class NoCpuVersion(AttributeError, NotImplementedError):
    """A function that has no CPU version among the stand-ins.

    An AttributeError, so that `hasattr` is told the truth: upstream code asks with it for shared memory, for quantised
    products, for fused operators. A NotImplementedError, because that is what it is.
    """

    def __init__(self, name: str, note: str = "") -> None:
        super().__init__(
            f"{name} has no CPU version among npu-rl's stand-ins: a rehearsal can't show what this call does."
            + (f" {note}" if note else "")
        )


class UnsupportedArgument(NotImplementedError):
    """A stand-in was called in a way that it doesn't compute."""

    def __init__(self, function: str, argument: str, value: object, why: str = "") -> None:
        shown = type(value).__name__ if hasattr(value, "shape") else repr(value)
        super().__init__(
            f"{function}: {argument}={shown} has no CPU version in npu-rl's stand-in"
            + (f": {why}" if why else "")
        )
