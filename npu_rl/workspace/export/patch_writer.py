"""The text of a patch: a header from the commit's message, and git's diff of two trees in a fixed form.

Three lines of context, full ids, no dates and no version of git; no setting of the user's has an effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from npu_rl.common.errors import PatchError
from npu_rl.stack.compose.apply_patch import Tolerance, run_patch
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.hunks.key_headings import with_key_paths
from npu_rl.stack.lock.lock_model import LockedPatch
from npu_rl.stack.patches.scan_hunks import Scanner
from npu_rl.workspace.export.series_of_component import SeriesPatch

_OPTIONS = (
    *("-r", "-p", "--full-index", "--unified=3", "--inter-hunk-context=0", "--no-renames", "--no-color"),
    *("--no-ext-diff", "--no-textconv", "--diff-algorithm=myers", "--indent-heuristic", "--dst-prefix=b/"),
    *("--src-prefix=a/", "--submodule=short", "--ignore-submodules=none"),
)
_FILE = re.compile(rb"^(?=diff --git )", re.MULTILINE)
_NAME = re.compile(rb"^(--- |\+\+\+ |diff --git )(.*)$", re.MULTILINE)
_OLD_NAME = re.compile(rb"^--- a/([\w./+-]+\.(?:yaml|yml|json|toml|ini|cfg))$", re.MULTILINE)
_SUBJECT = re.compile(r"(?i)^subject:\s*")
# Lines that would begin a diff, or end the header of a mail.
_UNFIT = re.compile(r"(?m)^(?=diff |--- |\+\+\+ |@@ |Index: |---$|From |={20})")


@dataclass(frozen=True)
class PatchOptions:
    """How an entry of a manifest has its patches applied."""

    strip: int = 1
    directory: str = ""


def patch_text(trees: Trees, patch: SeriesPatch, old: bytes | None, options: PatchOptions) -> bytes:
    """Return the text of a patch that gives `after` from `before`.

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
    return _written(trees, patch, _header_of(old), options)


def _written(trees: Trees, patch: SeriesPatch, header: bytes, options: PatchOptions) -> bytes:
    text = header + b"---\n" + _diff(trees, patch, options)
    what = f"{patch.step.commit} can't be written as a patch"
    try:
        found = _applied(trees, patch, text, options)
    except PatchError as error:
        raise PatchError(
            what, where=error.where, why=f"{error.what}. {error.why or ''}", hint=error.hint
        ) from error
    if found != patch.after:
        raise PatchError(what, why="It gives another tree when it is applied.")
    return text


def header_text(message: str) -> bytes:
    """Return the header of a commit's message, without its `Patch:` trailers."""
    subject, _, body = message.strip().partition("\n")
    lines = [line.rstrip() for line in body.split("\n") if not re.match(r"Patch:[ \t]", line)]
    text = "\n".join(lines).strip("\n")
    first = f"Subject: {_SUBJECT.sub('', subject.strip())}\n"
    whole = first + (f"\n{_UNFIT.sub(' ', text)}\n" if text else "")
    return whole.replace("\0", " ").replace("\r", "").encode("utf-8", "replace")


def _header_of(text: bytes) -> bytes:
    """Return the header of a patch, without the line that ends it."""
    preamble, _ = Scanner(text.replace(b"\r\n", b"\n"), "patch").scan()
    kept = re.split(rb"(?m)^---$", preamble)[0].rstrip()
    return kept + b"\n" if kept else b""


def _still_gives(trees: Trees, patch: SeriesPatch, text: bytes, options: PatchOptions) -> bool:
    """Return whether the text of a patch gives its tree, although a patch before it was changed."""
    try:
        return _applied(trees, patch, text, options) == patch.after
    except PatchError:
        return False


def _applied(trees: Trees, patch: SeriesPatch, text: bytes, options: PatchOptions) -> str:
    """Return the tree that a patch gives, applied exactly. Raises PatchError."""
    locked = LockedPatch(
        name=patch.slug, file=patch.slug, sha256="", tree="", hunks=0, files=(), strip=options.strip,
        directory=options.directory,
    )  # fmt: skip
    return run_patch(trees, patch.before, locked, text, patch.component, (".",), Tolerance())[1].tree


def _diff(trees: Trees, patch: SeriesPatch, options: PatchOptions) -> bytes:
    done = trees.repository.run("diff-tree", *_OPTIONS, patch.before, patch.after)
    parts = [_with_key_paths(trees, patch.before, part) for part in _FILE.split(done.stdout) if part]
    if not parts:
        raise PatchError(
            f"{patch.component}/{patch.slug} changes nothing any more",
            where=str(patch.step.commit),
            hint="Take it out of `series` or the manifest and remove its file, and drop its commit.",
        )
    return b"".join(parts) if options == PatchOptions() else b"".join(_moved(part, options) for part in parts)


def _with_key_paths(trees: Trees, tree: str, part: bytes) -> bytes:
    """Return one file's part with key paths for headings, if it is a configuration file of the tree."""
    name = _OLD_NAME.search(part.partition(b"\n@@ ")[0])
    entry = trees.find(tree, name[1].decode()) if name is not None else None
    return (
        part
        if name is None or entry is None
        else with_key_paths(part, trees.blob(entry.oid), name[1].decode())
    )


def _moved(part: bytes, options: PatchOptions) -> bytes:
    """Return one file's part with names for another `strip` and `directory`."""
    head, mark, body = part.partition(b"\n@@ ")
    folder = f"{options.directory.rstrip('/')}/".encode() if options.directory else b""
    prefix = {b"a/": b"", b"b/": b""}
    if options.strip:
        prefix = {side: side + b"x/" * (options.strip - 1) for side in prefix}

    def name(found: re.Match[bytes]) -> bytes:
        return b" ".join(
            word[:1] * word.startswith(b'"') + _renamed(word, folder, prefix) for word in _words(found)
        )

    return _NAME.sub(name, head) + mark + body


def _words(found: re.Match[bytes]) -> list[bytes]:
    return [found[1].rstrip(), *re.findall(rb'"(?:[^"\\]|\\.)*"|\S+', found[2])]


def _renamed(word: bytes, folder: bytes, prefix: dict[bytes, bytes]) -> bytes:
    bare = word.removeprefix(b'"')
    side = bare[:2]
    if side not in prefix or not bare[2:].startswith(folder):
        return bare
    return prefix[side] + bare[2 + len(folder) :]
