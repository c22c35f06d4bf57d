"""Editing of the patches listed in a manifest file. All other bytes, such as comments, are kept.

ruamel.yaml finds the places of values in the text, and only those are written. Its round trip of a whole file changed
up to 30 other lines of our own manifests (`[{a: b}]` became `[a: b]`, folded lines became one). npu-rl's own reader has
accepted the file before, and reads the result before anything is written: only the entries may differ.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from npu_rl.common.errors import ManifestError
from npu_rl.common.yaml_documents.layers import APPEND
from npu_rl.common.yaml_documents.yaml_reader import read_yaml
from npu_rl.stack.manifest.manifest_kind import MANIFEST
from npu_rl.workspace.export.history_steps import TREE

PatchItem = str | Mapping[str, Any]  # a bare path, or a mapping with options


@dataclass(frozen=True)
class ListEdit:
    """A change of one component's list of patches.

    Attributes:
        inherited: The entries that a parent has, as long as the list of this file adds to them.
        replaced: New paths of entries, by their place in the whole list.
        added: Paths to add at the end.
        removed: Entries to take out, by their place in the whole list.
    """

    component: str
    inherited: Sequence[PatchItem]
    replaced: Mapping[int, str]
    added: Sequence[str]
    removed: frozenset[int] = frozenset()


def edited(text: bytes, edits: Sequence[ListEdit], name: str) -> bytes:
    """Return the text of a manifest with changed entries. Raises ManifestError if anything else would change."""
    before = read_yaml(text, name, MANIFEST)
    expected = copy.deepcopy(before.data)
    result = text.decode("utf-8-sig")
    for edit in edits:
        _apply(expected, edit)
        result = _written(result, edit)
    written = (b"\xef\xbb\xbf" if text.startswith(b"\xef\xbb\xbf") else b"") + result.encode()
    if not _reads_as(written, expected, name):
        names = " and of ".join(edit.component for edit in edits)
        raise ManifestError(
            f"The patches can't be added to {name}",
            why="More than its entries would change: an anchor is shared, or a value is laid out in a way that is not "
            "supported here.",
            hint=f"Write `patches:` of {names} as a plain list without anchors, such as `patches: [./x.patch]` or "
            "`patches: []`, and export again.",
        )
    return written


def _reads_as(text: bytes, expected: Any, name: str) -> bool:
    try:
        return bool(read_yaml(text, name, MANIFEST).data == expected)
    except ManifestError:
        return False


# -- data ----------------------------------------------------------------------------------------------


def _apply(data: Any, edit: ListEdit) -> None:
    """Apply an edit to a manifest's data in place, as the expected result of the edited text."""
    holder = data
    for key in _keys(edit.component):
        if holder.get(key) is None:
            holder[key] = {}
        holder = holder[key]
    found = holder.get("patches")
    appends = isinstance(found, dict) and list(found) == [APPEND]
    own = found[APPEND] if appends else found if isinstance(found, list) else []
    if _takes_over(edit, holder):
        own, appends = [*copy.deepcopy(list(edit.inherited)), *own], False
        skipped = 0
    else:
        skipped = len(edit.inherited) if appends or "patches" not in holder else 0
        appends = appends or ("patches" not in holder and bool(edit.inherited))
    for place, path in edit.replaced.items():
        item = own[place - skipped]
        own[place - skipped] = {**item, "path": path} if isinstance(item, dict) else path
    own = [item for place, item in enumerate(own, skipped) if place not in edit.removed]
    own = [*own, *edit.added]
    holder["patches"] = {APPEND: own} if appends else own


def _keys(component: str) -> tuple[str, ...]:
    return (TREE,) if component == TREE else ("components", component)


def _takes_over(edit: ListEdit, holder: Mapping[str, Any]) -> bool:
    """Return whether the file's own list must replace the parent's because an inherited entry changes."""
    found = holder.get("patches")
    inherits = "patches" not in holder or (isinstance(found, dict) and list(found) == [APPEND])
    return inherits and any(place < len(edit.inherited) for place in (*edit.replaced, *edit.removed))


# -- text ----------------------------------------------------------------------------------------------


@dataclass
class _Text:
    """A text and its changes, each a span with its replacement."""

    text: str
    changes: list[tuple[int, int, str]] = field(default_factory=list)

    @property
    def newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"

    def put(self, at: int, new: str, end: int | None = None) -> None:
        self.changes.append((at, at if end is None else end, new))

    def line_end(self, at: int) -> int:
        """Return the end of the line at an index, before its newline."""
        end = self.text.find("\n", at)
        end = len(self.text) if end < 0 else end
        return end - 1 if self.text[end - 1 : end] == "\r" else end

    def cut_lines(self, at: int, end: int) -> None:
        """Remove the complete lines from one index to another."""
        start = self.text.rfind("\n", 0, at) + 1
        after = self.text.find("\n", end)
        self.put(start, "", len(self.text) if after < 0 else after + 1)

    def changed(self) -> str:
        text = self.text
        for at, end, new in sorted(self.changes, key=lambda change: change[0], reverse=True):
            text = text[:at] + new + text[end:]
        return text


def _written(text: str, edit: ListEdit) -> str:
    """Return the text with one component's list changed."""
    from ruamel.yaml import YAML  # 60 ms, and only an export that enters a patch needs it

    root = YAML(pure=True).compose(text)
    out = _Text(text)
    holder, missing = root, list(_keys(edit.component))
    while missing and (below := _value(holder, missing[0])) is not None and _is_mapping(below):
        holder = below
        missing.pop(0)
    found = _value(holder, "patches") if not missing else None
    data = {} if missing or found is None else {"patches": _plain(found)}
    if missing or found is None or not isinstance(found.value, list) or _takes_over(edit, data):
        _put_list(out, holder, missing, found, edit)
    else:
        _change_list(out, holder, found, edit)
    return out.changed()


def _put_list(out: _Text, holder: Any, missing: list[str], found: Any, edit: ListEdit) -> None:
    """Write a complete list, either new or replacing one that only adds to the parent's."""
    own = _plain(found) if found is not None and isinstance(found.value, list) else []
    items: list[Any] = [*edit.inherited, *(own[APPEND] if isinstance(own, dict) else own or [])]
    takes_over = any(place < len(edit.inherited) for place in (*edit.replaced, *edit.removed))
    for place, path in edit.replaced.items():
        items[place] = {**items[place], "path": path} if isinstance(items[place], Mapping) else path
    items = [item for place, item in enumerate(items) if place not in edit.removed]
    listed = _flow([*items, *edit.added] if takes_over or not edit.inherited else list(edit.added))
    value = listed if takes_over or not edit.inherited else f"{{{APPEND}: {listed}}}"
    if found is not None and found.value == "":  # its mark is at the next key
        out.put(_after_colon(out, holder, found), f" {value}")
    elif found is not None:
        out.put(found.start_mark.index, value, _end(found))
    else:
        _add_key(out, holder, [*missing, "patches"], value)


def _change_list(out: _Text, holder: Any, found: Any, edit: ListEdit) -> None:
    """Change a list in the file: its entries, and additions to it."""
    appends = _is_mapping(found)
    listed = _value(found, APPEND) if appends else found
    skipped = len(edit.inherited) if appends else 0
    gone = [place - skipped for place in sorted(edit.removed)]
    for place, path in edit.replaced.items():
        item = listed.value[place - skipped]
        item = _value(item, "path") if _is_mapping(item) else item
        out.put(item.start_mark.index, _scalar(path), _end(item))
    if listed.flow_style or not listed.value:
        _change_flow_list(out, listed, gone, edit.added)
        return
    for place in gone:
        out.cut_lines(listed.value[place].start_mark.index, _end(listed.value[place]))
    if len(gone) == len(listed.value):  # the lines of its comments stay
        new = f"[{', '.join(map(_scalar, edit.added))}]"
        out.put(_after_colon(out, found if appends else holder, listed), f" {new}")
        return
    if not edit.added:
        return
    first = listed.value[0].start_mark.index
    dash = out.text.rfind("-", 0, first)
    start = out.text.rfind("\n", 0, dash) + 1
    lead, gap = " " * (dash - start), out.text[dash + 1 : first]
    gap = gap if gap.strip(" ") == "" else " "
    lines = "".join(f"{out.newline}{lead}-{gap}{_scalar(path)}" for path in edit.added)
    out.put(out.line_end(_end(listed.value[-1])), lines)


def _change_flow_list(out: _Text, listed: Any, gone: Sequence[int], added: Sequence[str]) -> None:
    """Remove items from a list in brackets, and add others at its end."""
    kept = [item for place, item in enumerate(listed.value) if place not in gone]
    for place in gone:
        item = listed.value[place]
        later = [other for other in listed.value[place + 1 :] if other in kept]
        if any(other in kept for other in listed.value[:place]):
            out.put(_end(listed.value[place - 1]), "", _end(item))
        elif later:
            out.put(item.start_mark.index, "", listed.value[place + 1].start_mark.index)
        else:
            out.put(item.start_mark.index, "", _end(item))
    if added:
        inside = _end(listed.value[-1]) if listed.value else listed.start_mark.index + 1
        out.put(inside, (", " if kept else "") + ", ".join(map(_scalar, added)))


def _add_key(out: _Text, holder: Any, keys: list[str], value: str) -> None:
    """Add `keys: value` to a mapping: before `take`, else at its end."""
    if holder.flow_style:
        inner = value
        for key in reversed(keys[1:]):
            inner = f"{{{key}: {inner}}}"
        comma = ", " if holder.value else ""
        at = _end(holder.value[-1][1]) if holder.value else holder.start_mark.index + 1
        out.put(at, f"{comma}{keys[0]}: {inner}")
        return
    column = holder.value[0][0].start_mark.column
    lines = [f"{' ' * (column + 2 * depth)}{key}:" for depth, key in enumerate(keys)]
    lines[-1] += f" {value}"
    take = next((key for key, _ in holder.value if key.value == "take"), None)
    if take is not None:
        start = _start_of_comments(out.text, out.text.rfind("\n", 0, take.start_mark.index) + 1)
        out.put(start, "".join(f"{line}{out.newline}" for line in lines))
        return
    last = _end(holder.value[-1][1])
    out.put(out.line_end(last), "".join(f"{out.newline}{line}" for line in lines))


def _after_colon(out: _Text, holder: Any, found: Any) -> int:
    """Return the index after the colon of a value's key."""
    key = next(key for key, value in holder.value if value is found)
    return out.text.index(":", int(key.end_mark.index)) + 1


def _start_of_comments(text: str, start: int) -> int:
    """Return the start of the comment lines directly above a line, which belong to it."""
    while start and text[text.rfind("\n", 0, start - 1) + 1 : start].lstrip().startswith("#"):
        start = text.rfind("\n", 0, start - 1) + 1
    return start


def _end(node: Any) -> int:
    """Return the end of a node's text, without the blank lines and comments that a block's end includes."""
    if isinstance(node.value, list) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _is_mapping(node: Any) -> bool:
    return isinstance(node.value, list) and node.tag.endswith(":map")


def _value(node: Any, name: str) -> Any:
    """Return the node of a key in a mapping; None if it is missing."""
    return next((value for key, value in node.value if key.value == name), None)


def _plain(node: Any) -> Any:
    if _is_mapping(node):
        return {key.value: _plain(value) for key, value in node.value}
    return [_plain(item) for item in node.value] if isinstance(node.value, list) else node.value or None


def _flow(items: Sequence[Any]) -> str:
    return f"[{', '.join(map(_item, items))}]"


def _item(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_item(inner)}" for key, inner in value.items()) + "}"
    return _flow(value) if isinstance(value, list) else _scalar(str(value))


def _scalar(text: str) -> str:
    plain = re.fullmatch(r"[\w.][\w./+@-]*", text) and not text.isdigit()
    return text if plain else json.dumps(text, ensure_ascii=False)
