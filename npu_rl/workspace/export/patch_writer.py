"""The text of a commit's patch: a header from its message, and a diff by `stack/compose/write_patch.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from npu_rl.common.errors import PatchError
from npu_rl.stack.compose.apply_patch import run_patch
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.compose.write_patch import PatchOptions, diff_text, header_of, tree_after
from npu_rl.stack.patches.patch_header import parse_header
from npu_rl.workspace.export.series_of_component import SeriesPatch

_SUBJECT = re.compile(r"(?i)^subject:\s*")
_SUBJECT_LINES = re.compile(rb"(?m)^Subject:.*(?:\n[ \t]+\S.*)*\n")  # folded, in a mail
# Lines of setup's commits, of which `git rebase -i` may have squashed several.
_OF_SETUP = re.compile(
    r"Apply \S+ to \S+|Component: \S+|Patch-SHA256: [0-9a-f]{64}|Repair: \S+|Replaces: \S+|Tree: [0-9a-f]{40}"
)
# Lines that would begin a diff, or end the header of a mail.
_UNFIT = re.compile(r"(?m)^(?=diff |--- |\+\+\+ |@@@? |Index: |---$|From |={20})")


def patch_text(
    trees: Trees, patch: SeriesPatch, locked: Mapping[str, bytes], options: PatchOptions, *, in_place: bool
) -> bytes:
    """Return the text of a patch that turns `before` into `after`.

    Args:
        options: How the manifest has the patch applied.
        in_place: Whether it stays in its file, so that the manifest's `eol` and `repair` still hold.
        locked: The files of the lock's patches by SHA-256. One that still does exactly that stays; a new text keeps its
            header, unless the commit was reworded.

    Raises:
        PatchError: If it can't be written as a patch, with its commit.
    """
    if patch.locked is None:
        message = patch.step.commit.message
        header = _reworded(patch, None) if patch.step.laid else header_text(message)
        return written(trees, patch, header, options)
    raw = locked[patch.locked.sha256]
    old = patch.locked.applied_text(raw)
    is_alike = PatchOptions(patch.locked.strip, patch.locked.directory) == options
    if is_alike and (in_place or old == raw) and stays(trees, patch, locked):
        return raw
    header = _reworded(patch, header_of(old)) if patch.is_reworded else header_of(old)
    return written(trees, patch, header, options)


def stays(trees: Trees, patch: SeriesPatch, locked: Mapping[str, bytes]) -> bool:
    """Return whether the file of a locked patch still does what its commit does, though an earlier one may not."""
    if patch.locked is None or patch.is_reworded:
        return False
    if patch.is_unchanged:
        return True
    where = patch.before, patch.locked, locked[patch.locked.sha256], patch.component
    try:
        return run_patch(trees, *where, (".",))[1] == patch.after
    except PatchError:
        return False


def written(trees: Trees, patch: SeriesPatch, header: bytes, options: PatchOptions) -> bytes:
    """Return the text of a patch with a header, and a diff in the fixed form. Raises PatchError."""
    text = header + b"---\n" + diff_text(trees, patch.before, patch.after, options)
    try:
        if tree_after(trees, patch.before, text, patch.slug, patch.component, options) == patch.after:
            return text
        why = "Applying it gives a different tree."
    except PatchError as error:
        why = f"{error.what}. {error.why or ''}".strip()
    raise PatchError(
        f"{patch.step.commit} can't be written as a patch",
        why=why,
        hint="Take this change out of the commit: git commit --amend, or git rebase -i.",
    )


def header_text(message: str) -> bytes:
    """Return the patch header from a commit's message, without its `Patch:` trailers."""
    subject, _, body = message.strip().partition("\n")
    lines = [line.rstrip() for line in body.split("\n") if not re.match(r"Patch:[ \t]", line)]
    text = "\n".join(lines).strip("\n")
    first = f"Subject: {_SUBJECT.sub('', subject.strip())}\n"
    whole = first + (f"\n{_UNFIT.sub(' ', text)}\n" if text else "")
    return whole.replace("\0", " ").replace("\r", "").encode("utf-8", "replace")


def _reworded(patch: SeriesPatch, header: bytes | None) -> bytes:
    """Return the header of a patch of setup whose commit was reworded, without the lines that setup wrote.

    A new subject replaces the old one, fields or a new subject with a text replace the whole, and other text is added.

    Args:
        header: The old one; None for a patch of another component that the same commit changes now.
    """
    assert patch.step.laid is not None
    of_setup = set(patch.step.laid.commit.message.split("\n"))
    subject, *lines = patch.step.commit.message.strip().split("\n")
    is_new = subject not in of_setup and _OF_SETUP.fullmatch(subject) is None
    kept = [line for line in lines if not line or (line not in of_setup and not _OF_SETUP.fullmatch(line))]
    body = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip("\n")
    if not is_new:
        subject = patch.slug.replace("-", " ").capitalize() if header is None else _subject(header)
    words = header_text(f"{subject}\n\n{body}")
    first, _, rest = words.partition(b"\n")
    if header is None or (is_new and rest) or parse_header(body).fields:
        return words
    if not is_new:
        return header + rest
    kept_text = _SUBJECT_LINES.sub(b"", header, count=1).lstrip(b"\n")
    return first + b"\n" + (b"\n" + kept_text if kept_text else b"")


def _subject(header: bytes) -> str:
    return parse_header(header.decode("utf-8", "replace")).subject
