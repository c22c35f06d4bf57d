"""The text of a commit's patch: a header from its message, and a diff by `stack/compose/write_patch.py`."""

from __future__ import annotations

import re

from npu_rl.common.errors import PatchError
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.compose.write_patch import PatchOptions, diff_text, header_of, tree_after
from npu_rl.stack.patches.patch_header import parse_header
from npu_rl.workspace.export.series_of_component import SeriesPatch

_SUBJECT = re.compile(r"(?i)^subject:\s*")
_SUBJECT_LINES = re.compile(rb"(?m)^Subject:.*(?:\n[ \t]+\S.*)*")  # folded, in a mail
# Lines of setup's commits, of which `git rebase -i` may have squashed several.
_OF_SETUP = re.compile(
    r"Apply \S+ to \S+|Component: \S+|Patch-SHA256: [0-9a-f]{64}|Repair: \S+|Replaces: \S+|Tree: [0-9a-f]{40}"
)
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
    if patch.step.laid is not None and (old is None or patch.step.is_reworded):
        header = _reworded(patch, None if old is None else header_of(old))
    elif old is None:
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


def _reworded(patch: SeriesPatch, header: bytes | None) -> bytes:
    """Return the header of a patch of setup whose commit was reworded, without the lines that setup wrote.

    Args:
        header: The old one, which stays where the user wrote nothing in its place; None for a patch of another
            component that the same commit changes now.
    """
    assert patch.step.laid is not None
    of_setup = set(patch.step.laid.commit.message.split("\n"))
    subject, *lines = patch.step.commit.message.strip().split("\n")
    is_new = subject not in of_setup and not _OF_SETUP.fullmatch(subject)
    kept = [line for line in lines if not line or (line not in of_setup and not _OF_SETUP.fullmatch(line))]
    body = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip("\n")
    words = header_text(f"{subject if is_new else patch.slug.replace('-', ' ').capitalize()}\n\n{body}")
    first, _, rest = words.partition(b"\n")
    if header is None or (is_new and rest):
        return words
    if is_new:
        return _with_subject(header, first)
    if parse_header(body).fields:
        old = _SUBJECT_LINES.search(header)
        return (old[0] if old else first) + b"\n" + rest
    return header + (rest if header else rest.lstrip(b"\n"))


def _with_subject(header: bytes, line: bytes) -> bytes:
    """Return a header with another subject."""
    if _SUBJECT_LINES.search(header):
        return _SUBJECT_LINES.sub(lambda _: line, header, count=1)
    return line + b"\n" + (b"\n" + header if header else b"")


def header_part(text: bytes) -> bytes:
    """Return what is above the diff of an export's patch."""
    return text[: len(text) - len(diff_part(text))]


def diff_part(text: bytes) -> bytes:
    """Return a patch without its header; empty if the text has no diff in the form of an export."""
    found = text.find(b"\ndiff --git ")
    return b"" if found < 0 else text[found:]


def changed_lines(text: bytes) -> list[bytes]:
    """Return a patch's changed lines and file names; ids, places and context follow from the patches before it."""
    return [line for line in diff_part(text).split(b"\n") if line.startswith((b"+", b"-", b"\\"))]


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
