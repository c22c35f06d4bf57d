"""Differences between two stacks: pins, takes, merges, patches, requirements, environment, host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from npu_rl.common.masking import masked_value
from npu_rl.common.printable import counted
from npu_rl.stack.comparison.commits_between import CommitsBetween
from npu_rl.stack.comparison.compared_stack import ComparedComponent, ComparedPatch, ComparedStack

ADDED, REMOVED, CHANGED, SAME = "added", "removed", "changed", "same"


@dataclass(frozen=True)
class ChangedValue:
    """A named value; `before` or `after` is None if only one side has it."""

    name: str
    before: str | None
    after: str | None

    @property
    def state(self) -> str:
        """Return whether it was added, removed or changed."""
        return ADDED if self.before is None else REMOVED if self.after is None else CHANGED

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"name": self.name, "state": self.state, "from": self.before, "to": self.after}


@dataclass(frozen=True)
class ComparedPatches:
    """A patch of one side or both; for a changed patch, `why` names the parts that differ."""

    name: str
    state: str
    before: str | None
    after: str | None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "state": self.state,
            "from": self.before,
            "to": self.after,
            "why": self.why,
        }


@dataclass
class ComponentDifference:
    """One component.

    Attributes:
        state: Added and removed where only one side has it.
        pin: None if it is the same.
        commits: None if the pin is the same, or only one side has the component.
        takes: Taken paths that differ, "FROM -> TO".
        patches: All patches, including unchanged ones.
        others: Sources, submodules, dist-info and the like.
    """

    name: str
    state: str
    pin: ChangedValue | None
    commits: CommitsBetween | None = None
    takes: list[ChangedValue] = field(default_factory=list)
    merges: list[ChangedValue] = field(default_factory=list)
    patches: list[ComparedPatches] = field(default_factory=list)
    others: list[ChangedValue] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        lists = {
            key: [one.to_json() for one in getattr(self, key)]
            for key in ("takes", "merges", "patches", "others")
        }
        pin = None if self.pin is None else self.pin.to_json()
        commits = None if self.commits is None else asdict(self.commits)
        return {"name": self.name, "state": self.state, "pin": pin, "commits": commits, **lists}


@dataclass
class StackDifferences:
    """Two stacks and their differences; an unchanged component is listed with its state only."""

    before: ComparedStack
    after: ComparedStack
    components: list[ComponentDifference]
    tree_patches: list[ComparedPatches]
    stack: list[ChangedValue]
    requirements: list[ChangedValue]
    env: list[ChangedValue]
    host: list[ChangedValue]

    @property
    def is_same(self) -> bool:
        """Return whether nothing differs."""
        values = (self.stack, self.requirements, self.env, self.host)
        patches = all(patch.state == SAME for patch in self.tree_patches)
        return patches and not any(values) and all(one.state == SAME for one in self.components)

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {
            "same": self.is_same,
            "from": _side(self.before),
            "to": _side(self.after),
            "components": [one.to_json() for one in self.components],
            "tree_patches": [one.to_json() for one in self.tree_patches],
            "stack": [one.to_json() for one in self.stack],
            "requirements": [one.to_json() for one in self.requirements],
            "env": [one.to_json() for one in self.env],
            "host": [one.to_json() for one in self.host],
        }


def compare_stacks(
    before: ComparedStack, after: ComparedStack, commits: Mapping[str, CommitsBetween]
) -> StackDifferences:
    """Return what differs.

    Args:
        commits: The commits between the pins, by component.
    """
    names = dict.fromkeys([*after.components, *before.components])
    facts = [ChangedValue("device", before.device, after.device)] * (before.device != after.device)
    if before.digest and after.digest and before.runtime != after.runtime:
        facts.append(ChangedValue("npu_rl_runtime", before.runtime, after.runtime))
    return StackDifferences(
        before,
        after,
        [_component(n, before.components.get(n), after.components.get(n), commits.get(n)) for n in names],
        _patches(before.tree_patches, after.tree_patches),
        facts,
        _values(before.requirements, after.requirements),
        [_masked(one) for one in _values(before.env, after.env)],
        _values(before.host, after.host),
    )


def moved_components(before: ComparedStack, after: ComparedStack) -> list[str]:
    """Return the names of the components whose pin changed."""
    both = [name for name in after.components if name in before.components]
    return [name for name in both if _pin(before.components[name], after.components[name]) is not None]


def _component(
    name: str,
    before: ComparedComponent | None,
    after: ComparedComponent | None,
    commits: CommitsBetween | None,
) -> ComponentDifference:
    if before is None or after is None:
        one = after if before is None else before
        assert one is not None
        state = ADDED if before is None else REMOVED
        value = _shown_pin(one)
        pin = ChangedValue(name, None, value) if before is None else ChangedValue(name, value, None)
        found = ComponentDifference(name, state, pin)
        found.patches = _patches(*((), one.patches) if before is None else (one.patches, ()))
        return found
    found = ComponentDifference(name, SAME, _pin(before, after), commits)
    found.takes = _takes(before.takes, after.takes)
    found.merges = _merges(before, after)
    found.patches = _patches(before.patches, after.patches)
    found.others = _values(before.others, after.others)
    patches = any(patch.state != SAME for patch in found.patches)
    if found.pin is not None or found.takes or found.merges or found.others or patches:
        found.state = CHANGED
    return found


def _pin(before: ComparedComponent, after: ComparedComponent) -> ChangedValue | None:
    known = before.pin is not None and after.pin is not None
    if before.pin == after.pin if known else before.ref == after.ref:
        return None
    return ChangedValue("pin", _shown_pin(before), _shown_pin(after))


def _shown_pin(one: ComparedComponent) -> str:
    if one.pin is None:
        return one.ref or "?"
    return one.pin if one.ref in (None, one.pin) else f"{one.pin} {one.ref}"


def _takes(before: Sequence[str], after: Sequence[str]) -> list[ChangedValue]:
    removed = [ChangedValue(take, take, None) for take in before if take not in after]
    return [*removed, *(ChangedValue(take, None, take) for take in after if take not in before)]


def _merges(before: ComparedComponent, after: ComparedComponent) -> list[ChangedValue]:
    """Return the merges that differ. An unresolved head is not compared with the other one."""
    shared = before.merges.keys() & after.merges.keys()
    unknown = {ref for ref in shared if None in (before.merges[ref][1], after.merges[ref][1])}
    sides = [
        {
            ref: how if head is None or ref in unknown else f"{how} at {head}"
            for ref, (how, head) in merges.items()
        }
        for merges in (before.merges, after.merges)
    ]
    return _values(*sides)


def _values(before: Mapping[str, str], after: Mapping[str, str]) -> list[ChangedValue]:
    names = dict.fromkeys([*before, *after])
    found = [ChangedValue(name, before.get(name), after.get(name)) for name in names]
    return [one for one in found if one.before != one.after]


def _masked(one: ChangedValue) -> ChangedValue:
    """Return a variable with its secret values masked."""
    before, after = (None if v is None else masked_value(one.name, v) for v in (one.before, one.after))
    return ChangedValue(one.name, before, after)


# -- patches -------------------------------------------------------------------------------------------


def _patches(before: Sequence[ComparedPatch], after: Sequence[ComparedPatch]) -> list[ComparedPatches]:
    """Return the patches of both sides in the later stack's order, then the removed ones.

    Patches are paired by name, or else by slug if only the number has changed.
    """
    left = {patch.name: patch for patch in before}
    partners: dict[str, ComparedPatch] = {p.name: left.pop(p.name) for p in after if p.name in left}
    for patch in after:
        if patch.name not in partners:
            same = [name for name in left if _slug(name) == _slug(patch.name)]
            if len(same) == 1:
                partners[patch.name] = left.pop(same[0])
    found = [_patch(partners.get(patch.name), patch) for patch in after]
    return found + [ComparedPatches(p.name, REMOVED, p.file, None) for p in left.values()]


def _slug(name: str) -> str:
    head, _, rest = name.partition("-")
    return rest if rest and head.isdecimal() else name


def _patch(before: ComparedPatch | None, after: ComparedPatch) -> ComparedPatches:
    if before is None:
        return ComparedPatches(after.name, ADDED, None, after.file)
    why = [f"was {before.name}"] * (before.name != after.name)
    if before.sha256 != after.sha256 and None not in (before.sha256, after.sha256):
        why.append("another text")
    for one in _values(before.options, after.options):
        why.append(f"{one.name}: {one.before or 'none'} -> {one.after or 'none'}")
    state = CHANGED if why else SAME
    return ComparedPatches(after.name, state, before.file, after.file, "; ".join(why))


def _side(stack: ComparedStack) -> dict[str, Any]:
    return {"manifest": stack.name, "path": str(stack.path), "lock": stack.digest, "tree": stack.tree}


def summary_line(differences: StackDifferences) -> str:
    """Return the counts in one line."""
    if differences.is_same:
        return "no difference"
    states = [one.state for one in differences.components]
    counts = [
        f"{counted(states.count(s), 'component')} {s}" for s in (CHANGED, ADDED, REMOVED, SAME) if s in states
    ]
    patches = [p.state for one in differences.components for p in one.patches]
    patches += [p.state for p in differences.tree_patches]
    shown = [
        f"{counted(patches.count(s), 'patch')} {s}" for s in (ADDED, REMOVED, CHANGED, SAME) if s in patches
    ]
    return ", ".join([*counts, *shown]).replace("patchs", "patches")
