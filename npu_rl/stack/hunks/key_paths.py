"""Keys of a configuration file with their lines: YAML, JSON, TOML and INI.

A path names every mapping and list around a key; in TOML and INI it is the section's name and the key. Only lines and
names are read, no values, so that tags, templates in strings and repeated keys are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

Names = tuple[str, ...]

SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")

_SIZE_LIMIT = 1 << 20
_KEY_LIMIT = 50_000
_DEPTH_LIMIT = 64
_SURROGATE = re.compile(r"(?P<before>(?<!\\)(?:\\\\)*)\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_SECTION = re.compile(r"\s*(?P<open>\[{1,2})(?P<name>[^\[\]]+)(?P<close>\]{1,2})\s*(?:[#;].*)?")
_INI_KEY = re.compile(r"[^\s#;=:\[][^=:]*")
_TOML_PART = r"""(?:[\w-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_TOML_KEY = re.compile(rf"\s*(?P<name>{_TOML_PART}(?:\s*\.\s*{_TOML_PART})*)\s*=")
_TOML_SECTION = re.compile(
    rf"\s*(?P<open>\[{{1,2}})\s*(?P<name>{_TOML_PART}(?:\s*\.\s*{_TOML_PART})*)\s*(?P<close>\]{{1,2}})\s*(?:#.*)?"
)
# What may hide a bracket or a quote in a TOML value; the first alternative that fits at a place wins.
_TOML_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"""|\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*|[\[\]{}]|\n',
    re.S,
)


class KeyPlace(NamedTuple):
    """One key of a mapping, item of a list, or section.

    Attributes:
        line: Its line, from 1.
        path: The names around it, and its own.
        opens: Whether its value is a mapping, a list or a YAML scalar of several lines.
    """

    line: int
    path: Names
    opens: bool


@lru_cache(maxsize=4)  # for the next hunk of the same file
def read_keys(content: bytes, path: str) -> Sequence[KeyPlace] | None:
    """Return the keys in the order of the file; None if it is not valid, or too large to be read."""
    if len(content) > _SIZE_LIMIT:
        return None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    if path.endswith((".yaml", ".yml")):
        return _yaml_keys(text)
    if path.endswith(".json"):
        # JSON is YAML, where a tab is no space, and an escaped half of a character no text
        return _yaml_keys(_SURROGATE.sub(r"\g<before>______", text.replace("\t", " ")))
    return _toml_keys(text) if path.endswith(".toml") else _ini_keys(text)


class _Open:
    """A mapping or list whose end has not been read. `name` is the last key of a mapping, once it was read."""

    def __init__(self, path: Names, *, is_list: bool) -> None:
        self.path = path
        self.is_list = is_list
        self.items = 0
        self.name: str | None = None
        self.line = 0


def _yaml_keys(text: str) -> list[KeyPlace] | None:
    """Return the keys from YAML's parse events, which need no recursion and expand no alias."""
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    keys: list[KeyPlace] = []
    documents: list[tuple[int, int]] = []  # their first lines, and how many keys are above
    around: list[_Open] = []
    try:
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.DocumentStartEvent):
                assert event.start_mark is not None
                documents.append((event.start_mark.line + 1, len(keys)))
            elif isinstance(event, yaml.CollectionEndEvent):
                around.pop()
            elif isinstance(event, yaml.NodeEvent) and not _add(event, around, keys):
                return None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        return None
    return keys if len(documents) < 2 else _numbered(keys, documents)


def _add(event: Any, around: list[_Open], keys: list[KeyPlace]) -> bool:
    """Take one scalar, alias or start of a collection. Returns whether the limits still hold."""
    import yaml

    line = event.start_mark.line + 1
    collection = isinstance(event, yaml.CollectionStartEvent)
    opens = collection or bool(event.end_mark and event.end_mark.line >= line)
    path: Names = ()
    if around:
        outer = around[-1]
        if outer.is_list:
            path = (*outer.path, f"[{outer.items}]")
            outer.items += 1
            keys.append(KeyPlace(line, path, opens))
        elif outer.name is None:
            outer.name, outer.line = str(getattr(event, "value", "?")), line
            path = (*outer.path, outer.name)  # of a mapping that is a key, which nobody names
        else:
            path = (*outer.path, outer.name)
            keys.append(KeyPlace(outer.line, path, opens))
            outer.name = None
    if collection:
        around.append(_Open(path, is_list=isinstance(event, yaml.SequenceStartEvent)))
    return len(keys) <= _KEY_LIMIT and len(around) <= _DEPTH_LIMIT


def _numbered(keys: list[KeyPlace], documents: Sequence[tuple[int, int]]) -> list[KeyPlace]:
    """Return the keys of several documents, each below a key for its document."""
    found: list[KeyPlace] = []
    ends = [start for _, start in documents[1:]] + [len(keys)]
    for number, ((line, start), end) in enumerate(zip(documents, ends, strict=True), 1):
        name = f"document {number}"
        found.append(KeyPlace(line, (name,), True))
        found += [key._replace(path=(name, *key.path)) for key in keys[start:end]]
    return found


def _ini_keys(text: str) -> list[KeyPlace] | None:
    keys: list[KeyPlace] = []
    section: Names = ()
    for number, line in enumerate(text.split("\n"), 1):
        if match := _SECTION.fullmatch(line.rstrip("\r")):
            section = (match["name"].strip(),)
            keys.append(KeyPlace(number, section, True))
        elif match := _INI_KEY.match(line):  # an indented line goes on with the value above
            keys.append(KeyPlace(number, (*section, match[0].strip()), False))
        elif line.startswith("["):
            return None
    return keys if len(keys) <= _KEY_LIMIT else None


def _toml_keys(text: str) -> list[KeyPlace] | None:
    keys: list[KeyPlace] = []
    section: Names = ()
    counts: dict[str, int] = {}
    at, number = 0, 1
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line = text[at:end].rstrip("\r")
        if match := _TOML_SECTION.fullmatch(line):
            name = match["name"]
            if len(match["open"]) != len(match["close"]):
                return None
            if match["open"] == "[[":
                counts[name] = counts.get(name, -1) + 1
                name = f"{name}[{counts[name]}]"
            section = (name,)
            keys.append(KeyPlace(number, section, True))
        elif match := _TOML_KEY.match(line):
            keys.append(KeyPlace(number, (*section, match["name"]), False))
            value_end = _end_of_value(text, at + match.end())
            if value_end is None:
                return None
            number += text.count("\n", at, value_end)
            at = end = value_end
        elif line.strip() and not line.lstrip().startswith("#"):
            return None
        at, number = end + 1, number + 1
    return keys if len(keys) <= _KEY_LIMIT else None


def _end_of_value(text: str, start: int) -> int | None:
    """Return the end of a TOML value's last line; None if a string or bracket is not closed."""
    depth = 0
    for token in _TOML_TOKEN.finditer(text, start):
        found = token[0]
        if found in ('"""', "'''"):
            return None
        if found in "[{":
            depth += 1
        elif found in "]}":
            depth -= 1
        elif found == "\n" and depth <= 0:
            return token.start() if depth == 0 else None
    return len(text) if depth == 0 else None
