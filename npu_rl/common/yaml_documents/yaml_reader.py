"""Reader of YAML files as plain Python data, with the line of every key.

Scalars stay text (YAML 1.1 reads 3.10 as 3.1) and record whether they were quoted; an unquoted `~`, `null` or nothing
is None. Tags, merge keys and keys that are not plain text are refused; so is what exceeds a bound on size, depth or
values, aliases included.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

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
_TOO_DEEP = f"it is nested deeper than {DEPTH_LIMIT} levels"


class NotYaml(ValueError):
    """Text outside the supported subset of YAML, with the line (from 1)."""

    def __init__(self, line: int, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.line = line
        self.why = why
        self.hint = hint


def read_yaml(raw: bytes, name: str, kind: DocumentKind) -> Document:
    """Read one YAML mapping. Raises the kind's error, with file and line, for anything else."""
    try:
        root = _read(_decode(raw))
        if not isinstance(root, yaml.MappingNode):
            _fail(root, "the file must contain one mapping (key: value lines)")
        values = _Values()
        data = values.of(root, ())
    except NotYaml as error:
        what = f"{name} can't be read as a {kind.noun}"
        raise kind.error(what, where=f"{name}:{error.line}", why=error.why, hint=error.hint) from error
    assert isinstance(data, dict)
    return Document(name, data, values.lines, frozenset(values.null_words))


def read_value(text: str) -> tuple[Plain, list[KeyPath], frozenset[KeyPath]]:
    """Read one value of any type, as written after a key, with the paths to its keys and null words.

    Empty text or an unquoted null is None. Raises NotYaml.
    """
    if not text.strip():
        return None, [()], frozenset()
    values = _Values()
    return values.of(_read(text), ()), list(values.lines), frozenset(values.null_words)


def _decode(raw: bytes) -> str:
    if len(raw) > SIZE_LIMIT:
        why = f"it is larger than {SIZE_LIMIT // 1024} KB"
        raise NotYaml(1, why, "Keep data in separate files.")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise NotYaml(1, "it is UTF-16", "Save it as UTF-8.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise NotYaml(line, "it is not UTF-8", "Save it as UTF-8.") from None


class _Composer(yaml.BaseLoader):
    """Composes PyYAML's nodes, and refuses by event what the nodes no longer show."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        is_key = index is None and isinstance(parent, yaml.MappingNode)
        if is_key and not isinstance(event, yaml.ScalarEvent):
            _fail(event, "a key must be plain text, not a list, a mapping or an alias")
        if getattr(event, "tag", None) is not None:
            hint = "Remove the tag; quote a value that must stay text."
            _fail(event, f"YAML tags are not allowed ({shown(event.tag)})", hint)
        self.depth += 1
        if self.depth > DEPTH_LIMIT + is_key:  # so the stack is never exhausted
            _fail(event, _TOO_DEEP)
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _read(text: str) -> yaml.Node:
    """Compose the nodes of one document. Raises NotYaml."""
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=_Composer)
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
    if root is None:
        raise NotYaml(1, "it is empty", "Start with `schema: 1`.")
    return root


@dataclass
class _Values:
    """Plain data of nodes with aliases expanded, the line of each key or item, and the paths of null words."""

    lines: dict[KeyPath, int] = field(default_factory=dict)
    null_words: set[KeyPath] = field(default_factory=set)
    count: int = 0

    def of(self, node: yaml.Node, path: KeyPath) -> Plain:
        self.lines.setdefault(path, _line(node))  # of a value in a mapping it is its key's
        self._count(node)
        if len(path) >= DEPTH_LIMIT:  # an alias may contain itself
            _fail(node, _TOO_DEEP)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.of(item, (*path, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        text = str(node.value)
        if node.style is None and text in _NULLS:
            if text in NULL_WORDS:
                self.null_words.add(path)
            return None
        if _CONTROL.search(text):
            _fail(node, "a value contains a control character or half a surrogate pair")
        return text if node.style is None else Quoted(text)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Plain]:
        result: dict[str, Plain] = {}
        for key, value in node.value:
            self._count(key)
            if key.style is None and (key.value in _NULLS or key.value == "<<"):
                why = "the merge key << is not supported" if key.value == "<<" else "a key is empty"
                _fail(key, why, "Use `extends:`, or write the lines out." if key.value == "<<" else None)
            if _CONTROL.search(key.value):
                _fail(key, "a key contains a control character or half a surrogate pair")
            key_path = (*path, key.value)
            if key.value in result:
                why = f"the key {shown(key.value)} is given twice, first on line {self.lines[key_path]}"
                _fail(key, why, "Keep one of the two.")
            self.lines[key_path] = _line(key)
            result[key.value] = self.of(value, key_path)
        return result

    def _count(self, node: yaml.Node) -> None:
        self.count += 1
        if self.count > NODE_LIMIT:
            _fail(node, f"it contains more than {NODE_LIMIT} values once aliases are expanded")


def _line(place: yaml.Node | yaml.Event) -> int:
    return place.start_mark.line + 1 if place.start_mark else 1


def _fail(place: yaml.Node | yaml.Event, why: str, hint: str | None = None) -> NoReturn:
    raise NotYaml(_line(place), why, hint)
