"""The text of a commit's patch: a header from its message, and a diff by `stack/compose/write_patch.py`."""

from __future__ import annotations

import re

from npu_rl.common.errors import PatchError
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.compose.write_patch import PatchOptions, diff_text, header_of, tree_after
from npu_rl.workspace.export.series_of_component import SeriesPatch

_SUBJECT = re.compile(r"(?i)^subject:\s*")
# Lines that would begin a diff, or end the header of a mail.
_UNFIT = re.compile(r"(?m)^(?=diff |--- |\+\+\+ |@@@? |Index: |---$|From |={20})")

_OUT = "Take this change out of the commit: git commit --amend, or git rebase -i."


def patch_text(trees: Trees, patch: SeriesPatch, old: bytes | None, options: PatchOptions) -> bytes:
    """Return the text of a patch that turns `before` into `after`.

    Args:
        old: Its text so far, which stays if it still does exactly that. A new text keeps its header, unless the commit
            was reworded.

    Raises:
        PatchError: If it can't be written as a patch, with its commit.
    """
    if old is None or patch.step.is_reworded:
        header = header_text(patch.step.commit.message)
    elif patch.is_unchanged or _still_gives(trees, patch, old, options):
        return old
    else:
        return rewritten(trees, patch, old, options)
    return _written(trees, patch, header, options)


def rewritten(trees: Trees, patch: SeriesPatch, old: bytes, options: PatchOptions) -> bytes:
    """Return the text of a patch with its header, and a diff in the fixed form. Raises PatchError."""
    return _written(trees, patch, header_of(old), options)


def _written(trees: Trees, patch: SeriesPatch, header: bytes, options: PatchOptions) -> bytes:
    text = header + b"---\n" + _diff(trees, patch, options)
    what = f"{patch.step.commit} can't be written as a patch"
    try:
        found = _applied(trees, patch, text, options)
    except PatchError as error:
        raise PatchError(what, why=f"{error.what}. {error.why or ''}".strip(), hint=_OUT) from error
    if found != patch.after:
        raise PatchError(what, why="Applying it gives a different tree.")
    return text


def header_text(message: str) -> bytes:
    """Return the patch header from a commit's message, without its `Patch:` trailers."""
    subject, _, body = message.strip().partition("\n")
    lines = [line.rstrip() for line in body.split("\n") if not re.match(r"Patch:[ \t]", line)]
    text = "\n".join(lines).strip("\n")
    first = f"Subject: {_SUBJECT.sub('', subject.strip())}\n"
    whole = first + (f"\n{_UNFIT.sub(' ', text)}\n" if text else "")
    return whole.replace("\0", " ").replace("\r", "").encode("utf-8", "replace")


def _still_gives(trees: Trees, patch: SeriesPatch, text: bytes, options: PatchOptions) -> bool:
    """Return whether a patch's text still produces its tree although an earlier patch has changed."""
    try:
        return _applied(trees, patch, text, options) == patch.after
    except PatchError:
        return False


def _applied(trees: Trees, patch: SeriesPatch, text: bytes, options: PatchOptions) -> str:
    return tree_after(trees, patch.before, text, patch.slug, patch.component, options)


def _diff(trees: Trees, patch: SeriesPatch, options: PatchOptions) -> bytes:
    text = diff_text(trees, patch.before, patch.after, options)
    if not text:
        raise PatchError(
            f"{patch.component}/{patch.slug} no longer changes anything",
            where=str(patch.step.commit),
            hint="Take it out of `series` or the manifest and remove its file, and drop its commit.",
        )
    return text
