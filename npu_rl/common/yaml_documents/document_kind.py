"""Kinds of configuration file, manifest and recipe: their names, bundled files and error classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.errors import NpuRlError
from npu_rl.common.yaml_documents.problems import Invalid


@dataclass(frozen=True)
class DocumentKind:
    """One kind of configuration file.

    Attributes:
        noun: Its name in messages; with an s, its folder among the bundled files.
        bundled: Returns the bundled files by name.
        error: Raised for a file that can't be read.
        invalid: Raised for invalid content, with all errors.
    """

    noun: str
    bundled: Callable[[], Mapping[str, Path]]
    error: type[NpuRlError]
    invalid: type[Invalid]

    @property
    def folder(self) -> str:
        """Name of the folder of the bundled files."""
        return f"{self.noun}s"
