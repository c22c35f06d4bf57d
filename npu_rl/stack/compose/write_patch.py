"""The text of a patch: a header, and git's diff of two trees in a fixed form.

Three lines of context, full ids, no dates and no version of git; no setting of the user's has an effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from npu_rl.stack.compose.apply_patch import run_patch
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.lock.lock_model import LockedPatch
from npu_rl.stack.patches.scan_hunks import Scanner

_OPTIONS = (
    *("-r", "-p", "--full-index", "--unified=3", "--inter-hunk-context=0", "--no-renames", "--no-color"),
    *("--no-ext-diff", "--no-textconv", "--diff-algorithm=myers", "--indent-heuristic", "--dst-prefix=b/"),
    *("--src-prefix=a/", "--submodule=short", "--ignore-submodules=none"),
)
_FILE = re.compile(rb"^(?=diff --git )", re.MULTILINE)
_NAME = re.compile(rb"^(--- |\+\+\+ |diff --git )(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class PatchOptions:
    """Options that a manifest's entry sets for its patches."""

    strip: int = 1
    directory: str = ""


def diff_text(trees: Trees, before: str, after: str, options: PatchOptions) -> bytes:
    """Return the diff of two trees; empty if they are the same."""
    done = trees.repository.run("diff-tree", *_OPTIONS, before, after)
    if options == PatchOptions():
        return done.stdout
    return b"".join(_moved(part, options) for part in _FILE.split(done.stdout) if part)


def header_of(text: bytes) -> bytes:
    """Return the header of a patch, without the line that ends it. Raises PatchError."""
    preamble, _ = Scanner(text.replace(b"\r\n", b"\n"), "patch").scan()
    kept = re.split(rb"(?m)^---$", preamble)[0].rstrip()
    return kept + b"\n" if kept else b""


def tree_after(trees: Trees, tree: str, text: bytes, name: str, component: str, options: PatchOptions) -> str:
    """Apply a patch exactly, and return the resulting tree. Raises PatchError."""
    locked = LockedPatch(
        name=name, file=name, sha256="", tree="", hunks=0, files=(), strip=options.strip,
        directory=options.directory,
    )  # fmt: skip
    return run_patch(trees, tree, locked, text, component, (".",))[1]


def _moved(part: bytes, options: PatchOptions) -> bytes:
    """Return one file's diff with its names rewritten for the options' `strip` and `directory`."""
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
