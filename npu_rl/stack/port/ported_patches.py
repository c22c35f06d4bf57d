"""The patches after a rebase: what became of each, its text for the new version, and what a person has to look at."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from npu_rl.common.errors import LockError, PatchError
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.compose.write_patch import PatchOptions, diff_text, tree_after
from npu_rl.stack.git.commits import CommitFacts
from npu_rl.stack.git.objects import GITLINK, SYMLINK, short
from npu_rl.stack.lint.python_names import PYTHON, new_faults
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_model import Patch
from npu_rl.stack.port.both_versions import OldPatch
from npu_rl.stack.port.placement_check import ReadFile, place_questions, places
from npu_rl.stack.resolve.record_merge import merge_trees

CARRIED, MOVED, BY_HAND = "carried", "moved", "changed by hand"
UPSTREAM, SKIPPED = "upstream has it", "skipped"


@dataclass(frozen=True)
class PortedPatch:
    """What became of one patch.

    Attributes:
        patch: The name of its file.
        outcome: "carried" is at its lines, "moved" at others.
        questions: What a person has to look at.
    """

    patch: str
    outcome: str
    questions: tuple[str, ...] = ()


@dataclass(frozen=True)
class RebasedPatches:
    """A component's patches, rebased.

    Attributes:
        trees: The objects of both versions, and of the commits.
        old, new: The trees of both versions.
        commits: Those on top of the new version, in order.
    """

    trees: Trees
    component: str
    patches: Sequence[OldPatch]
    old: str
    new: str
    commits: Sequence[CommitFacts]

    def judged(self) -> tuple[list[PortedPatch], dict[str, bytes]]:
        """Return what became of each patch, and the texts for the new version by name, in the order of the commits.

        Raises:
            PatchError: If the commits are not one for each patch, or one has a change that no patch can have.
        """
        befores = [self.new, *(commit.tree for commit in self.commits)]
        texts: dict[str, bytes] = {}
        at: dict[int, tuple[str, str]] = {}
        for commit, before in zip(self.commits, befores, strict=False):
            patch = self._patch_of(commit, at)
            at[commit.number] = before, commit.tree
            texts[patch.name] = self._text(patch, before, commit.tree)
        found, old, new = [], self.old, self.new
        for number, patch in enumerate(self.patches, 1):
            if number in at:
                found.append(self._ported(patch, old, *at[number], texts[patch.name]))
                new = at[number][1]
            else:
                is_upstream = merged_tree(self.trees, old, new, patch.after) == new
                found.append(PortedPatch(patch.name, UPSTREAM if is_upstream else SKIPPED))
            old = patch.after
        return found, texts

    def _patch_of(self, commit: CommitFacts, known: Collection[int]) -> OldPatch:
        if commit.number not in known and 1 <= commit.number <= len(self.patches):
            return self.patches[commit.number - 1]
        second = "a second one of a patch" if commit.number in known else "of no patch"
        why = "A port has one commit for each patch, with the author's date that npu-rl gave it."
        hint = (
            "Put its change into a patch's commit: git reset --soft HEAD^, git commit --fixup COMMIT, then\n"
            "git rebase -i --autosquash refs/npu-rl/new"
        )
        raise PatchError(f"Commit {short(commit.id)} ({commit.subject}) is {second}", why=why, hint=hint)

    def _text(self, patch: OldPatch, before: str, after: str) -> bytes:
        """Return the text of a patch for the new version, which is proven to apply there exactly."""
        text = self._diff(patch, before, after)
        if tree_after(self.trees, before, text, patch.name, self.component, PatchOptions()) != after:
            raise PatchError(f"{patch.name} would not give the tree of its commit when it is applied")
        return text

    def _diff(self, patch: OldPatch, before: str, after: str) -> bytes:
        return patch.header + b"---\n" + diff_text(self.trees, before, after, PatchOptions())

    def _ported(self, patch: OldPatch, old: str, new: str, after: str, text: bytes) -> PortedPatch:
        """Judge a patch that has a commit. old, new: The trees before it."""
        was, now = (parse_patch(t, name=patch.name) for t in (self._diff(patch, old, patch.after), text))
        outcome = CARRIED if list(places(was)) == list(places(now)) else MOVED
        if merged_tree(self.trees, old, new, patch.after) != after:
            outcome = BY_HAND
        read_old, read_new, read_after = (_reader(self.trees, tree) for tree in (old, new, after))
        questions = [
            *place_questions(was, now, read_old, read_new, by_hand=outcome == BY_HAND),
            *_python_faults(now, read_new, read_after),
        ]
        return PortedPatch(patch.name, outcome, tuple(questions))


def merged_tree(trees: Trees, base: str, ours: str, theirs: str) -> str | None:
    """Return the tree that git's merge gives, as a rebase has it; None for conflicts."""
    try:
        return merge_trees(trees, base, ours, theirs, "port")
    except LockError:
        return None


def _python_faults(patch: Patch, before: ReadFile, after: ReadFile) -> Iterator[str]:
    """Yield the faults that Python files have since the patch, such as names that nothing defines."""
    for path in (file.path for file in patch.files if file.path.endswith(PYTHON)):
        content = after(path)
        if content is not None:
            yield from (f"error: {message}" for _, _, message in new_faults(path, before(path), content))


def _reader(trees: Trees, tree: str) -> ReadFile:
    def read(path: str) -> bytes | None:
        entry = trees.find(tree, path)
        if entry is None or entry.is_tree or entry.mode in (SYMLINK, GITLINK):
            return None
        return trees.blob(entry.oid)

    return read
