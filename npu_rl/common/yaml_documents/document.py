"""A mapping that was read from one YAML file, as plain data with the line of every key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from npu_rl.common.bounded import YAML_DEPTH
from npu_rl.common.yaml_documents.problems import KeyPath

DEPTH_LIMIT = YAML_DEPTH

Plain = Union[str, None, "list[Plain]", "dict[str, Plain]"]


@dataclass(frozen=True)
class Document:
    """A mapping read from one file.

    Attributes:
        name: The file, as messages show it.
        lines: Key path to line, from 1; 0 for a value that is not in a file, such as an argument.
        null_words: Values written as the word null, without quotes; ~ and nothing are not among them.
    """

    name: str
    data: dict[str, Plain]
    lines: dict[KeyPath, int]
    null_words: frozenset[KeyPath] = frozenset()
