"""The steps of a lock that change upstream code: merged pull requests, patches and patches of the tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from npu_rl.common.printable import counted
from npu_rl.stack.compose.apply_patch import parse_locked
from npu_rl.stack.git.objects import short
from npu_rl.stack.lock.lock_model import Lock, LockedComponent, LockedMerge, LockedPatch
from npu_rl.stack.patches.patch_header import WHY, parse_header

How = Literal["merge", "pick", "patch", "tree patch"]


@dataclass(frozen=True)
class Step:
    """One step, from the tree `before` to the tree `after`.

    Attributes:
        component: Whose trees these are; None for the assembled tree.
        name: The patch's name, or the ref of a pull request.
        subject: One line that says what it does.
        why: The reason in the patch's header.
        commits: "id subject" of the commits of a pull request, oldest first; only the newest if there are many.
    """

    how: How
    component: str | None
    name: str
    before: str
    after: str
    subject: str = ""
    why: str = ""
    commits: tuple[str, ...] = ()


def stack_steps(lock: Lock, unpatched_tree: str, texts: Mapping[str, str]) -> Iterator[Step]:
    """Yield the steps of a lock, in the order of its components.

    Args:
        unpatched_tree: The code tree before the first tree patch.
        texts: Patch texts by SHA-256.
    """
    for name, component in lock.components.items():
        yield from _component_steps(name, component, texts)
    before = unpatched_tree
    for patch in lock.tree_patches:
        yield _patch_step("tree patch", None, patch, before, texts)
        before = patch.tree


def _component_steps(name: str, component: LockedComponent, texts: Mapping[str, str]) -> Iterator[Step]:
    before = component.tree
    for merge in component.merges:
        yield _merge_step(name, merge, before)
        before = merge.tree
    for patch in component.patches:
        yield _patch_step("patch", name, patch, before, texts)
        before = patch.tree


def _merge_step(name: str, merge: LockedMerge, before: str) -> Step:
    subject = f"{counted(merge.count, 'commit')} up to {short(merge.head)}"
    how: How = "pick" if merge.how == "pick" else "merge"
    return Step(how, name, merge.ref, before, merge.tree, subject, commits=merge.commits)


def _patch_step(
    how: How, component: str | None, patch: LockedPatch, before: str, texts: Mapping[str, str]
) -> Step:
    text = texts.get(patch.sha256)
    header = parse_header(parse_locked(patch, text.encode("utf-8", "surrogateescape")).header if text else "")
    why = " ".join(header.fields.get(WHY, "").split())
    return Step(how, component, patch.name, before, patch.tree, header.subject, why)
