"""The difference of two versions of a Python file, definition by definition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from npu_rl.workspace.summary.definitions import Definition, definitions_in

_LONGEST = 100  # letters of a value or signature in one line


@dataclass(frozen=True)
class DefinitionChange:
    """One definition that was added, removed or replaced.

    Attributes:
        line: In the file after the change; of a removed definition in the file before it.
        details: What is different: "signature (a) -> (a, b)", "body", ...
    """

    change: str
    kind: str
    name: str
    line: int
    details: tuple[str, ...] = ()


def compare(before: bytes, after: bytes) -> list[DefinitionChange] | None:
    """Return the changes between two versions of a file, in the new version's order, with removals last.

    An empty version stands for a file that is not there. Comments and layout count for nothing. None if one of them
    can't be parsed as Python.
    """
    old, new = definitions_in(before), definitions_in(after)
    if old is None or new is None:
        return None
    changes = [
        *_named_changes(old.definitions, new.definitions),
        *_statement_changes(old.definitions, new.definitions),
    ]
    if before and after and old.docstring != new.docstring:
        changes.append(DefinitionChange("replaced", "module", "docstring", 1))
    return sorted(changes, key=lambda one: (one.change == "removed", one.line, one.name))


_Group = dict[tuple[str, str], list[Definition]]


def _grouped(definitions: Sequence[Definition]) -> _Group:
    """Return the definitions by kind and name. A name defined in both branches of an `if` has two."""
    groups: _Group = {}
    for one in definitions:
        if one.kind != "statement":
            groups.setdefault((one.kind, one.name), []).append(one)
    return groups


def _named_changes(before: Sequence[Definition], after: Sequence[Definition]) -> Iterator[DefinitionChange]:
    old, new = _grouped(before), _grouped(after)
    for key, versions in new.items():
        if key in old:
            yield from _replaced(old[key], versions)
        elif not _is_within_new_class(key[1], old, new):
            yield _whole("added", versions[0])
    for key, versions in old.items():
        if key not in new and not _is_within_new_class(key[1], new, old):
            yield _whole("removed", versions[0])


def _is_within_new_class(name: str, old: _Group, new: _Group) -> bool:
    """Return whether a definition is covered by a surrounding class that is entirely new."""
    parts = name.split(".")
    around = [".".join(parts[:count]) for count in range(1, len(parts))]
    return any(("class", outer) in new and ("class", outer) not in old for outer in around)


def _whole(change: str, one: Definition) -> DefinitionChange:
    details: list[str] = []
    if one.kind == "class":
        details = [f"bases {one.head}"] if one.head != "()" else []
        details += [f"with {', '.join(one.members)}"] if one.members else []
    elif one.kind in ("function", "method"):
        details = [*(f"@{decorator}" for decorator in one.decorators), one.head]
    else:
        details = [one.head]
    return DefinitionChange(change, one.kind, one.name, one.line, tuple(map(_short, details)))


def _replaced(old: Sequence[Definition], new: Sequence[Definition]) -> Iterator[DefinitionChange]:
    """Yield a change for each differing version of a definition, and one if their number differs."""
    for before, after in zip(old, new, strict=False):
        details = tuple(_differences(before, after))
        if details:
            yield DefinitionChange("replaced", after.kind, after.name, after.line, details)
    if len(old) != len(new):
        details = (f"defined {_times(len(new))}, before {_times(len(old))}",)
        yield DefinitionChange("replaced", new[-1].kind, new[-1].name, new[-1].line, details)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


_HEADS = {"class": "bases", "function": "signature", "method": "signature", "import": "import"}


def _differences(before: Definition, after: Definition) -> Iterator[str]:
    if before.head != after.head:
        yield f"{_HEADS.get(after.kind, 'value')} {_head_difference(before, after)}"
    if before.decorators != after.decorators:
        removed = [f"-@{one}" for one in before.decorators if one not in after.decorators]
        added = [f"+@{one}" for one in after.decorators if one not in before.decorators]
        yield _short(f"decorators {' '.join([*removed, *added]) or 'in another order'}")
    if before.content != after.content:
        yield "body"
    if before.docstring != after.docstring:
        yield "docstring"


def _head_difference(before: Definition, after: Definition) -> str:
    """Return both versions, reduced to the differing parameters for long signatures."""
    removed = [f"-{one}" for one in before.parameters if one not in after.parameters]
    added = [f"+{one}" for one in after.parameters if one not in before.parameters]
    if (removed or added) and max(len(before.head), len(after.head)) > _LONGEST:
        return _short(", ".join([*removed, *added]))
    return f"{_short(before.head or 'none')} -> {_short(after.head or 'none')}"


def _statement_changes(
    before: Sequence[Definition], after: Sequence[Definition]
) -> Iterator[DefinitionChange]:
    """Yield the statements that are in only one version."""
    old, new = ([one for one in version if one.kind == "statement"] for version in (before, after))
    yield from _only_in(new, old, "added")
    yield from _only_in(old, new, "removed")


def _only_in(
    these: Sequence[Definition], others: Sequence[Definition], change: str
) -> Iterator[DefinitionChange]:
    left = Counter(one.name for one in others)
    for one in these:
        if left[one.name]:
            left[one.name] -= 1
        else:
            yield DefinitionChange(change, one.kind, _short(one.name), one.line)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
