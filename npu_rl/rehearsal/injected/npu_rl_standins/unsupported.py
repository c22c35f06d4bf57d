"""Errors that stand-ins raise for functions without a CPU version. Standard library only."""

from __future__ import annotations


class NoCpuVersion(AttributeError, NotImplementedError):
    """A call of a function that the stand-ins have no CPU version of.

    It is an AttributeError, so that `hasattr` is right: upstream code uses it to check for shared memory, quantised
    products and fused ops. It is a NotImplementedError for all others.
    """

    def __init__(self, name: str, note: str = "") -> None:
        super().__init__(
            f"{name} has no CPU version among npu-rl's stand-ins: a rehearsal can't show what this call does."
            + (f" {note}" if note else "")
        )


class UnsupportedArgument(NotImplementedError):
    """An argument that a stand-in doesn't support."""

    def __init__(self, function: str, argument: str, value: object, why: str = "") -> None:
        shown = type(value).__name__ if hasattr(value, "shape") else repr(value)
        super().__init__(
            f"{function}: {argument}={shown} has no CPU version in npu-rl's stand-in"
            + (f": {why}" if why else "")
        )
