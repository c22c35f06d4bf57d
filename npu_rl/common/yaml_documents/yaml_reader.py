"""Reader of YAML files as plain Python data, with the line of every key and bounds on size and depth.

Scalars stay text (YAML 1.1 reads 3.10 as 3.1) and record whether they were quoted; an unquoted `~`, `null` or nothing
is None. The tree is built from parse events, which PyYAML produces without recursion, so size, depth and aliases are
bounded before any of them can exhaust memory or stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import yaml

from npu_rl.common.bounded import YAML_VALUES
from npu_rl.common.yaml_documents.document import DEPTH_LIMIT, Document, Plain
from npu_rl.common.yaml_documents.document_kind import DocumentKind
from npu_rl.common.yaml_documents.file_digests import SIZE_LIMIT
from npu_rl.common.yaml_documents.problems import KeyPath, shown
from npu_rl.common.yaml_documents.quoted_text import Quoted

NODE_LIMIT = YAML_VALUES

NULL_WORDS = frozenset({"null", "Null", "NULL"})
_NULLS = NULL_WORDS | {"", "~"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class _Node:
    """A value before aliases are expanded; `size` and `height` count its expanded nodes, itself included.

    `null_word` is whether None is written as the word null.
    """

    value: str | list[_Node] | dict[str, tuple[int, _Node]] | None
    line: int
    size: int
    height: int
    null_word: bool = False


def read_yaml(raw: bytes, name: str, kind: DocumentKind) -> Document:
    """Read one YAML mapping. Raises the kind's error, with file and line, for anything else."""
    try:
        root = _read(_decode(raw))
        if not isinstance(root.value, dict):
            raise NotYaml(root.line, "the file must contain one mapping (key: value lines)")
    except NotYaml as error:
        what = f"{name} can't be read as a {kind.noun}"
        raise kind.error(what, where=f"{name}:{error.line}", why=error.why, hint=error.hint) from error
    data, lines, null_words = _expanded(root)
    assert isinstance(data, dict)
    return Document(name, data, lines, null_words)


def read_value(text: str) -> tuple[Plain, list[KeyPath], frozenset[KeyPath]]:
    """Read one value of any type, as written after a key, with the paths to its keys and null words.

    Empty text, a comment or an unquoted null is None. Raises NotYaml.
    """
    if not text.strip():
        return None, [()], frozenset()
    data, lines, null_words = _expanded(_read(text))
    return data, list(lines), null_words


class NotYaml(ValueError):
    """Text outside the supported subset of YAML, with the line (from 1)."""

    def __init__(self, line: int, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.line = line
        self.why = why
        self.hint = hint


def _read(text: str) -> _Node:
    try:
        return _Reader(text).document()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        raise NotYaml(line, f"the character {error.character!r:.12} is not allowed in YAML") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = ", ".join(part for part in (error.context, error.problem) if part)
        raise NotYaml(mark.line + 1 if mark else 1, why.replace("'\\t'", "tab")) from None
    except NotYaml:
        raise
    except (ValueError, OverflowError):
        # PyYAML turns the number of a \U escape or a %YAML directive straight into a character or an int.
        raise NotYaml(1, "an escape or a directive contains a number that is out of range") from None


def _decode(raw: bytes) -> str:
    if len(raw) > SIZE_LIMIT:
        why = f"it is larger than {SIZE_LIMIT // 1024} KB"
        raise NotYaml(1, why, "Keep data in files of their own.")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise NotYaml(1, "it is UTF-16", "Save it as UTF-8.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise NotYaml(line, "it is not UTF-8", "Save it as UTF-8.") from None


class _Reader:
    """Builds a bounded tree of nodes from parse events."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.BaseLoader)
        self._anchors: dict[str, _Node] = {}
        self._nodes = 0

    def document(self) -> _Node:
        next(self._events)  # StreamStart
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            raise NotYaml(1, "it is empty", "Start with `schema: 1`.")
        root = self._node(next(self._events), 1)
        next(self._events)  # DocumentEnd
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            self._fail(event, "it contains several documents", "Keep one, and remove the `---` line.")
        return root

    def _node(self, event: yaml.Event, depth: int) -> _Node:
        node = self._value(event, depth)
        if depth + node.height - 1 > DEPTH_LIMIT:
            self._fail(event, f"it is nested deeper than {DEPTH_LIMIT} levels")
        return node

    def _value(self, event: yaml.Event, depth: int) -> _Node:
        if depth > DEPTH_LIMIT:
            self._fail(event, f"it is nested deeper than {DEPTH_LIMIT} levels")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.tag is not None:
            hint = "Remove the tag; quote a value that must stay text."
            self._fail(event, f"YAML tags are not allowed ({shown(event.tag)})", hint)
        self._count(event, 1)
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(event, depth)
        else:
            node = self._mapping(event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, event: yaml.AliasEvent) -> _Node:
        node = self._anchors.get(event.anchor or "")
        if node is None:
            why = f"the alias *{event.anchor} refers to no anchor above it, or to a value that contains it"
            self._fail(event, why)
        self._count(event, node.size)
        return node

    def _scalar(self, event: yaml.ScalarEvent) -> _Node:
        value: str | None = event.value
        if event.style is None and event.value in _NULLS:
            value = None
        elif _CONTROL.search(event.value):
            self._fail(event, "a value contains a control character or half a surrogate pair")
        elif event.style is not None:
            value = Quoted(event.value)
        return _Node(value, self._line(event), 1, 1, value is None and event.value in NULL_WORDS)

    def _sequence(self, start: yaml.Event, depth: int) -> _Node:
        items: list[_Node] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return _collection(items, items, self._line(start))

    def _mapping(self, start: yaml.Event, depth: int) -> _Node:
        entries: dict[str, tuple[int, _Node]] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event)
            if key in entries:
                why = f"the key {shown(key)} is given twice, first on line {entries[key][0]}"
                self._fail(event, why, "Keep one of the two.")
            entries[key] = (self._line(event), self._node(next(self._events), depth + 1))
        return _collection(entries, [node for _, node in entries.values()], self._line(start))

    def _key(self, event: yaml.Event) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            self._fail(event, "a key must be plain text, not a list, a mapping or an alias")
        node = self._value(event, 1)
        if not isinstance(node.value, str):
            self._fail(event, "a key is empty")
        if node.value == "<<" and not isinstance(node.value, Quoted):
            self._fail(event, "the merge key << is not supported", "Use `extends:`, or write the lines out.")
        return str(node.value)

    def _count(self, event: yaml.Event, size: int) -> None:
        self._nodes += size
        if self._nodes > NODE_LIMIT:
            self._fail(event, f"it contains more than {NODE_LIMIT} values once aliases are expanded")

    def _line(self, event: yaml.Event) -> int:
        return event.start_mark.line + 1 if event.start_mark else 1

    def _fail(self, event: yaml.Event, why: str, hint: str | None = None) -> NoReturn:
        raise NotYaml(self._line(event), why, hint)


def _collection(value: list[_Node] | dict[str, tuple[int, _Node]], children: list[_Node], line: int) -> _Node:
    size = 1 + sum(child.size for child in children)
    height = 1 + max((child.height for child in children), default=0)
    return _Node(value, line, size, height)


def _expanded(root: _Node) -> tuple[Plain, dict[KeyPath, int], frozenset[KeyPath]]:
    """Return plain data with aliases expanded, the line of each key or item, and the paths of null words."""
    lines: dict[KeyPath, int] = {(): root.line}
    null_words: set[KeyPath] = set()
    data = _to_plain(root, (), lines, null_words)
    return data, lines, frozenset(null_words)


def _to_plain(node: _Node, path: KeyPath, lines: dict[KeyPath, int], null_words: set[KeyPath]) -> Plain:
    """Return plain data with aliases expanded; the line of each key or item is added to `lines`."""
    if node.null_word:
        null_words.add(path)
    if isinstance(node.value, dict):
        result: dict[str, Plain] = {}
        for key, (line, child) in node.value.items():
            key_path = (*path, key)
            lines[key_path] = line
            result[key] = _to_plain(child, key_path, lines, null_words)
        return result
    if isinstance(node.value, list):
        items: list[Plain] = []
        for index, child in enumerate(node.value):
            item_path = (*path, index)
            lines[item_path] = child.line
            items.append(_to_plain(child, item_path, lines, null_words))
        return items
    return node.value
