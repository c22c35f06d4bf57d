"""Patches that change more lines than `git diff --minimal` needs.

Only where a line is both removed and added can a smaller diff exist: otherwise both sides have no more of any line in
common than the context. So git is rarely asked, and once for all patches.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.git.objects import FILE, Entry
from npu_rl.stack.lint.lint_report import LintFinding
from npu_rl.stack.patches.patch_model import FilePatch, Hunk, Patch


@dataclass(frozen=True)
class ChangedText:
    """A file, or one hunk of it, before and after a patch, with the number of changed lines."""

    patch: str
    line: int
    what: str
    before: bytes
    after: bytes
    changed: int


def changed_hunks(patch: Patch) -> Iterator[ChangedText]:
    """Yield the hunks that might change fewer lines, each as a text of its own."""
    for file in patch.files:
        for hunk in file.hunks:
            if _may_be_smaller([hunk]):
                before, after = b"".join(hunk.old_lines), b"".join(hunk.new_lines)
                what = f"hunk {hunk.number}"
                yield ChangedText(patch.name, hunk.line, what, before, after, _changed([hunk]))


def changed_file(patch: str, file: FilePatch, before: bytes, after: bytes) -> Iterator[ChangedText]:
    """Yield the file if the patch might change fewer of its lines."""
    if _may_be_smaller(file.hunks):
        yield ChangedText(patch, file.line, file.path, before, after, _changed(file.hunks))


def _may_be_smaller(hunks: Iterable[Hunk]) -> bool:
    lines = [line for hunk in hunks for line in hunk.lines]
    removed = {line.raw for line in lines if line.tag == "-"}
    return any(line.tag == "+" and line.raw in removed for line in lines)


def _changed(hunks: Iterable[Hunk]) -> int:
    tags = Counter(line.tag for hunk in hunks for line in hunk.lines)
    return tags["-"] + tags["+"]


def smaller_diffs(texts: list[ChangedText]) -> Iterator[LintFinding]:
    """Yield a finding for each text whose diff by git has fewer lines."""
    if not texts:
        return
    for text, needed in zip(texts, _needed(texts), strict=True):
        if needed < text.changed:
            message = f"{text.what} changes {text.changed} lines, and `git diff --minimal` {needed}"
            fix = "write the patch again with `git diff --minimal`"
            yield LintFinding("minimal", Severity.ADVICE, text.patch, text.line, message, fix=fix)


def _needed(texts: list[ChangedText]) -> list[int]:
    """Return how many lines git's diff of each text changes, from one process for all of them."""
    with tempfile.TemporaryDirectory(prefix="npu-rl-lint-") as folder:
        init_bare(Path(folder))
        repository = Git(Path(folder))
        with Trees(repository) as trees:

            def tree(contents: Iterable[bytes]) -> str:
                blobs = (Entry(FILE, trees.write_object("blob", content)) for content in contents)
                return trees.write_tree({str(number): blob for number, blob in enumerate(blobs)})

            sides = tree(text.before for text in texts), tree(text.after for text in texts)
        options = ("--numstat", "-z", "--minimal", "--text", "--no-renames")
        rows = repository.lines("diff-tree", *options, *sides)
    counts = dict.fromkeys(range(len(texts)), 0)
    for row in rows:
        added, removed, name = row.split(b"\t")
        counts[int(name)] = int(added) + int(removed)
    return list(counts.values())
