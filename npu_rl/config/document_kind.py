"""What tells manifests from recipes when their files are found, read and laid over each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.config.problems import Invalid
from npu_rl.errors import NpuRlError


@dataclass(frozen=True)
class DocumentKind:
    """One kind of file a person writes.

    noun: its name in messages; with an s, its folder among the files shipped with npu-rl.
    bundled: name -> file of the shipped ones. error: raised for a file that can't be read.
    invalid: raised for what is in it, with every fault.
    """

    noun: str
    bundled: Callable[[], Mapping[str, Path]]
    error: type[NpuRlError]
    invalid: type[Invalid]

    @property
    def folder(self) -> str:
        """Name of the folder the shipped ones lie in."""
        return f"{self.noun}s"
