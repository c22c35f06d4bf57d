"""An error of a tensor task, with the four parts of npu-rl's own errors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class TensorError(Exception):
    """A problem with a file, tensor or machine that ends a task.

    Attributes:
        what: One sentence without a final full stop.
        where: The file, and the tensor in it.
        why: The evidence.
        hint: What to do next.
        host: Whether the machine is at fault (its disk, its packages) and not the files.
    """

    what: str
    where: str = ""
    why: str = ""
    hint: str = ""
    host: bool = False

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.what, self.where, self.why, self.hint)))
