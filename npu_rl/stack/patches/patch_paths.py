"""File names in patches: as git and GNU diff write them, the one path that they agree on, and which are safe."""

from __future__ import annotations

import re

from npu_rl.common.errors import PatchError
from npu_rl.common.yaml_documents.text_checks import is_dot_git, name_as_compared
from npu_rl.stack.patches.scan_hunks import RawFile, malformed

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
_EPOCH = re.compile(rb"\t(?:1970-01-01|1969-12-31) \d\d:\d\d:\d\d")
_FAULTS = {
    r"[\x00-\x1f\x7f]": "It holds a control character.",
    r"\\": "It holds a backslash, which is a folder separator on some systems.",
    r"^/|^[A-Za-z]:": "It is absolute; a patch may only name files below the tree it is for.",
    r"(^|/)\.\.(/|$)": "It holds `..`, which would leave the tree.",
}


class FileNames:
    """The names of one file, as the patch has them.

    Attributes:
        pair: The names in the `diff --git` line.
        old: The name in the `---` line.
        new: The name in the `+++` line.
    """

    def __init__(self, raw: RawFile, strip: int, directory: str, where: str) -> None:
        self.raw, self.strip, self.directory, self.where = raw, strip, directory, where
        self.pair = None if raw.names is None else _git_names(raw.names, strip, where)
        self.old = None if raw.old is None else _read_name(raw.old, where)
        self.new = None if raw.new is None else _read_name(raw.new, where)
        names = (*(self.pair or ()), self.old, self.new)
        self._named = [name for name in names if name is not None and name != DEV_NULL]

    def is_new(self) -> bool:
        """Return whether the patch creates the file."""
        if self.raw.names is not None:
            return b"new file mode " in self.raw.extended
        return self.old == DEV_NULL or self._is_absent(self.raw.old, self.raw.hunks[0].old_count)

    def is_deleted(self) -> bool:
        """Return whether the patch deletes the file."""
        if self.raw.names is not None:
            return b"deleted file mode " in self.raw.extended
        return self.new == DEV_NULL or self._is_absent(self.raw.new, self.raw.hunks[0].new_count)

    def _is_absent(self, rest: bytes | None, count: int) -> bool:
        """Return whether a side is absent: GNU `diff -N` names an absent file and dates it at the epoch."""
        return not count and rest is not None and _EPOCH.search(rest) is not None

    def path(self) -> str:
        """Return the target path. Raises PatchError unless all names agree on one, and it is safe."""
        if not self._named:
            raise malformed("Both sides are /dev/null", self.where)
        targets = {_target(name, self.strip, self.directory, self.where) for name in self._named}
        if len(targets) == 1 and (self.raw.names is None or self.pair is not None):
            return targets.pop()
        written = [n for n in (self.raw.names, self.raw.old, self.raw.new) if n is not None]
        raise PatchError(
            "The names of a file differ",
            where=self.where,
            why="\n".join(n.decode("utf-8", "replace") for n in written)
            + f"\nname no single file after `strip: {self.strip}`.",
            hint="Set `strip` of the patch entry (1 drops a/ and b/, 0 is for `git diff --no-prefix`). "
            "Write a rename as a deletion and a new file (`git diff --no-renames`).",
        )


def guarded(path: str) -> str | None:
    """Return the guarded name in a path, or None."""
    return _GUARDED.get(name_as_compared(path.rsplit("/", 1)[-1]))


def _read_name(rest: bytes, where: str) -> bytes:
    """Return the name on a `--- ` or `+++ ` line: quoted as in C, or up to a tab before a time stamp."""
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


def _unquoted(quoted: bytes) -> bytes:
    def value(found: re.Match[bytes]) -> bytes:
        code = found[1]
        return bytes([int(code, 8) if len(code) == 3 else _ESCAPES[code[0]]])

    return _ESCAPE.sub(value, quoted[1:-1])


def _git_names(rest: bytes, strip: int, where: str) -> tuple[bytes, bytes] | None:
    """Return both names of a `diff --git` line, or None if it does not name one file twice.

    Unquoted names may contain spaces: then they are only recognized if they are equal.
    """
    if rest.startswith(b'"'):
        first = _QUOTED.match(rest)
        if first is None or rest[first.end() : first.end() + 1] != b" ":
            return None
        return _unquoted(first[0]), _read_name(rest[first.end() + 1 :], where)
    if rest.endswith(b'"') and b' "' in rest:
        left, right = rest.split(b' "', 1)
        return left, _read_name(b'"' + right, where)
    pairs = []
    for space in re.finditer(rb" ", rest):
        left, right = rest[: space.start()], rest[space.end() :]
        name = _stripped(left, strip)
        if name is not None and name == _stripped(right, strip):
            pairs.append((left, right))
    return pairs[0] if len(pairs) == 1 else None


def _stripped(name: bytes, strip: int) -> bytes | None:
    """Return the name without its first `strip` folders; None if nothing is left."""
    parts = name.split(b"/", strip)
    return parts[strip] if len(parts) > strip and parts[strip] else None


def _target(name: bytes, strip: int, directory: str, where: str) -> str:
    """Return the path of a name, after `strip` and below `directory`. Raises PatchError for one that is not plain."""
    text = name.decode("utf-8", "backslashreplace")
    hint = "Correct the name in the patch, or regenerate it with `git diff`."
    why = next((why for pattern, why in _FAULTS.items() if re.search(pattern, text)), None)
    rest = _stripped(name, strip)
    path = ""
    if text.encode() != name:
        why = "It is not UTF-8."
    elif why is None and rest is None:
        why = f"Nothing is left of it after `strip: {strip}`."
        hint = "Set `strip` of the patch entry to the number of leading folders to drop (1 for a/ and b/)."
    elif why is None and rest is not None:
        path = f"{directory.rstrip('/')}/{rest.decode()}" if directory else rest.decode()
        segments = path.split("/")
        if {"", ".", ".."} & set(segments):
            why = f"{path} holds an empty folder name, `.` or `..`."
        elif any(map(is_dot_git, segments)):
            why = "It reaches into `.git`."
    if why is None:
        return path
    raise PatchError(f"The file name {text!r} is not allowed", where=where, why=why, hint=hint)
