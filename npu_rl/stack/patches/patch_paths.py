"""File names in patches: how git and GNU diff write them, and which of them are safe to change."""

from __future__ import annotations

import re

from npu_rl.common.errors import PatchError

DEV_NULL = b"/dev/null"

# Names that change how git itself reads a tree, and their 8.3 short names.
_GUARDED = {
    ".gitattributes": ".gitattributes",
    "gitatt~1": ".gitattributes",
    ".gitmodules": ".gitmodules",
    "gitmod~1": ".gitmodules",
}

_ESCAPES = dict(zip(rb"abtnvfr\"", b'\a\b\t\n\v\f\r\\"', strict=True))
_QUOTED = re.compile(rb'"(?:[^"\\]|\\[abtnvfr"\\]|\\[0-3][0-7]{2})*"')
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2}|.)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Code points that HFS+ ignores in names: ".g\u200cit" is ".git" there.
_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")


def _unquoted(quoted: bytes) -> bytes:
    def value(found: re.Match[bytes]) -> bytes:
        code = found[1]
        return bytes([int(code, 8) if len(code) == 3 else _ESCAPES[code[0]]])

    return _ESCAPE.sub(value, quoted[1:-1])


def read_name(rest: bytes, where: str) -> bytes:
    """Return the name on a `--- ` or `+++ ` line: quoted as in C, or up to a tab before a time stamp.

    Raises PatchError for quotes that don't close.
    """
    if not rest.startswith(b'"'):
        return rest.split(b"\t", 1)[0]
    quoted = _QUOTED.match(rest)
    if quoted is None or rest[quoted.end() :].strip():
        raise PatchError(
            "A quoted file name is malformed",
            where=where,
            why=rest.decode("utf-8", "replace"),
            hint='Regenerate the patch with `git diff`, which quotes as "a/\\303\\251".',
        )
    return _unquoted(quoted[0])


def stripped(name: bytes, strip: int) -> bytes | None:
    """Return the name without its first `strip` folders; None if nothing is left."""
    parts = name.split(b"/", strip)
    return parts[strip] if len(parts) > strip and parts[strip] else None


def git_names(rest: bytes, strip: int, where: str) -> tuple[bytes, bytes] | None:
    """Return both names of a `diff --git` line, or None if it does not name one file twice.

    Unquoted names may contain spaces: then they are only recognized if they are equal. Raises PatchError for
    malformed quotes.
    """
    if rest.startswith(b'"'):
        first = _QUOTED.match(rest)
        if first is None or rest[first.end() : first.end() + 1] != b" ":
            return None
        return _unquoted(first[0]), read_name(rest[first.end() + 1 :], where)
    if rest.endswith(b'"') and b' "' in rest:
        left, right = rest.split(b' "', 1)
        return left, read_name(b'"' + right, where)
    pairs = []
    for space in re.finditer(rb" ", rest):
        left, right = rest[: space.start()], rest[space.end() :]
        name = stripped(left, strip)
        if name is not None and name == stripped(right, strip):
            pairs.append((left, right))
    return pairs[0] if len(pairs) == 1 else None


def target(name: bytes, *, strip: int, directory: str, where: str) -> str:
    """Return the path of a name, after `strip` and below `directory`.

    Raises PatchError for a name that is not UTF-8, not relative, or not plain.
    """

    def refused(why: str, hint: str | None = None) -> PatchError:
        shown = name.decode("utf-8", "backslashreplace")
        return PatchError(
            f"The file name {shown!r} is not allowed",
            where=where,
            why=why,
            hint=hint or "Correct the name in the patch, or regenerate it with `git diff`.",
        )

    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refused("It is not UTF-8.") from error
    if _CONTROL.search(text):
        raise refused("It holds a control character.")
    if "\\" in text:
        raise refused("It holds a backslash, which is a folder separator on some systems.")
    if text.startswith("/") or re.match(r"[A-Za-z]:", text):
        raise refused("It is absolute; a patch may only name files below the tree it is for.")
    if ".." in text.split("/"):
        raise refused("It holds `..`, which would leave the tree.")
    rest = stripped(name, strip)
    if rest is None:
        raise refused(
            f"Nothing is left of it after `strip: {strip}`.",
            "Set `strip` of the patch entry to the number of leading folders to drop (1 for a/ and b/).",
        )
    path = rest.decode("utf-8")
    if directory:
        path = f"{directory.rstrip('/')}/{path}"
    for segment in path.split("/"):
        if segment in ("", ".", ".."):
            raise refused(f"{path} holds an empty folder name, `.` or `..`.")
        if _folded(segment) in (".git", "git~1"):
            raise refused("It reaches into `.git`.")
    return path


def guarded(path: str) -> str | None:
    """Return the guarded name in a path, or None."""
    return _GUARDED.get(_folded(path.rsplit("/", 1)[-1]))


def _folded(segment: str) -> str:
    """Return a segment of a path as the least strict file systems compare it."""
    return _IGNORED.sub("", segment).split(":", 1)[0].casefold().rstrip(" .")
