"""Old names of recipe keys, accepted until npu-rl 0.4."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from npu_rl.common.yaml_documents.document import Document
from npu_rl.common.yaml_documents.problems import place

# "answers" meant responses here, and what is right or wrong about them everywhere else (issue 24).
NEW_NAMES: dict[tuple[str, ...], str] = {
    ("rollout", "answers"): "responses",
    ("rollout", "validation", "answers"): "responses",
}


@dataclass(frozen=True)
class RenamedKey:
    """A key that is written with its old name, at `where`."""

    old: tuple[str, ...]
    new: tuple[str, ...]
    where: str


def current_path(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return a key path with the current name of its last key."""
    return (*path[:-1], NEW_NAMES.get(path, path[-1]))


def rename_keys(document: Document) -> Iterator[RenamedKey]:
    """Rename old keys of a document. If both names occur, both stay, and the old one is reported as unknown."""
    for old in NEW_NAMES:
        new = current_path(old)
        if old not in document.lines or new in document.lines:
            continue
        holder: Any = document.data  # mappings all the way: `lines` has the path
        for part in old[:-1]:
            holder = holder[part]
        items = {new[-1] if name == old[-1] else name: value for name, value in holder.items()}
        holder.clear()
        holder.update(items)
        moved = {path: line for path, line in document.lines.items() if path[: len(old)] == old}
        document.lines.update((new + path[len(old) :], line) for path, line in moved.items())
        for path in moved:
            del document.lines[path]
        yield RenamedKey(old, new, place(document.name, document.lines[new]))


def restore_old_names(content: dict[str, Any]) -> None:
    """Restore the old names of a recipe's keys, so that its digest equals that in existing records."""
    for old in NEW_NAMES:
        holder: Any = content
        for part in old[:-1]:
            holder = holder.get(part, {})
        if (new := NEW_NAMES[old]) in holder:
            holder[old[-1]] = holder.pop(new)
