"""One step of a port: the judgement of a patch against the new version, as trees, commits and the state."""

from __future__ import annotations

import re
from dataclasses import replace

from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.objects import FILE, Entry
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_header import parse_header
from npu_rl.stack.patches.patch_model import Patch
from npu_rl.stack.port.port_judgement import History, MarkerNames, PortedHunk, PortedPatch
from npu_rl.stack.port.port_patch import port_patch
from npu_rl.stack.port.version_files import VersionFiles
from npu_rl.stack.port_series.port_state import FoundHunk, FoundPlace, PortedPatchState, PortState
from npu_rl.stack.port_series.port_work_tree import tree_of
from npu_rl.stack.port_series.upstream_history import UpstreamHistory


def old_patch(trees: Trees, patch: PortedPatchState) -> Patch:
    """Return a patch of the series, parsed."""
    return parse_patch(trees.blob(patch.text), name=patch.name)


def judge(trees: Trees, state: PortState, index: int, history: History | None) -> PortedPatch:
    """Return the judgement of one patch on top of the ported ones. Raises SourceError, PatchError."""
    patch = state.patches[index]
    version = VersionFiles(trees, tree_of(trees, state.tip))
    names = MarkerNames(ours=f"{state.component} {state.to}", theirs=patch.name)
    parsed = old_patch(trees, patch)
    return port_patch(parsed, VersionFiles(trees, patch.before).read, version, history, names)


def tree_with(trees: Trees, state: PortState, index: int, ported: PortedPatch) -> str:
    """Return the tree after a patch, with markers where it conflicts."""
    tree = tree_of(trees, state.tip)
    changes: list[tuple[str, Entry | None]] = []
    for file in ported.files:
        if file.after is None and file.before is None:
            continue  # there may be a folder or a link
        if file.after is None:
            changes.append((file.path, None))
        elif file.after != file.before:
            mode = _mode_of(trees, state.patches[index], trees.find(tree, file.path), file.path)
            changes.append((file.path, Entry(mode, trees.write_object("blob", file.after))))
    return trees.put_all(tree, changes)


def _mode_of(trees: Trees, patch: PortedPatchState, new: Entry | None, path: str) -> str:
    """Return the mode of a patched file: the new version's, unless the patch changes it."""
    before, after = trees.find(patch.before, path), trees.find(patch.after, path)
    if after is not None and (new is None or before is None or before.mode != after.mode):
        return after.mode
    return FILE if new is None else new.mode


def with_hunks(
    patch: PortedPatchState, ported: PortedPatch, history: UpstreamHistory | None
) -> PortedPatchState:
    """Return the state of a patch with the judgement of its hunks."""
    return replace(patch, hunks=tuple(_hunk(hunk, history) for hunk in ported.hunks))


def message_of(header: str) -> str:
    """Return the header of a patch as a commit message."""
    subject = parse_header(header).subject
    fields = re.search(
        r"(?m)^[A-Z][A-Za-z-]*: (?s:.*)", re.sub(r"(?m)^(Subject|From|Date):.*\n( .*\n)*", "", header)
    )
    body = "" if fields is None else fields[0].split("\n---\n")[0].removesuffix("\n---")
    return f"{subject}\n\n{body}".strip()


def _hunk(hunk: PortedHunk, history: UpstreamHistory | None) -> FoundHunk:
    subject = "" if hunk.commit is None or history is None else history.subject(hunk.commit)
    places = tuple(FoundPlace(p.path, p.line, p.inside, float(p.score), p.context) for p in hunk.places)
    found = FoundHunk(hunk.path, hunk.number, hunk.state, hunk.old_line, hunk.new_line, hunk.inside, hunk.why)
    return replace(found, commit=hunk.commit, subject=subject, places=places)
