"""The paths that a run's recipe or a command line of it names, blanks and quotes included."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping

from npu_rl.common.bounded import parse_json, parse_yaml

_PATH = re.compile(r"(?:~|\.{1,2})?/[^\s\"'=,;:\[\]{}]*")
# As Hydra quotes the values of KEY=VALUE. One that never ends goes to the end, so that no part is read twice.
_QUOTED = re.compile(r"'((?:[^'\\]|\\.?)*)(?:'|\Z)|\"((?:[^\"\\]|\\.?)*)(?:\"|\Z)", re.DOTALL)


def named_paths(content: bytes) -> set[str]:
    """Return what may be a path in a recipe.yaml or command.json: its values, and the words of its text.

    The words are for files that can't be parsed, and for paths inside of longer values.
    """
    found = {*_PATH.findall(os.fsdecode(content)), *_values(content)}
    return {path for path in found if "/" in path and _is_path(path)}


def _values(content: bytes) -> Iterator[str]:
    """Yield each text of a YAML or JSON document, the value of each KEY=VALUE, and what is quoted in them."""
    for text in _texts(_parsed(content)):
        yield text
        yield text.partition("=")[2]
        for pieces in _QUOTED.findall(text):
            yield from (re.sub(r"(?s)\\(.)", r"\1", piece) for piece in pieces)


def _parsed(content: bytes) -> object:
    with contextlib.suppress(ValueError):
        return parse_json(content)
    with contextlib.suppress(ValueError):
        return parse_yaml(content)
    return None


def _texts(document: object) -> Iterator[str]:
    below = [document]
    while below:
        value = below.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            below += value.values()
        elif isinstance(value, list):
            below += value


def _is_path(text: str) -> bool:
    """Return whether the system takes a text for a path: without NUL, and without half of a character."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
