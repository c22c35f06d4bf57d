"""Strict scanning of a patch into raw files and hunks, line by line.

`git apply` and most parsers skip what they don't understand. Here every byte after the first diff is part of a file's
header, of a hunk, or of the end of a mail, which begins as git, b4 or a mailing list writes it and has no other diff;
anything else is an error. Names, modes and kinds of change are left to `parse_patch`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from npu_rl.common.errors import PatchError

REGENERATE = "Regenerate the patch with `git diff` or `git format-patch`."
TEXT_ONLY = "Patches may only change text; leave the file out (`git diff -- . ':!<path>'`)."

HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: |$)")
_EXTENDED = (
    b"old mode ",
    b"new mode ",
    b"deleted file mode ",
    b"new file mode ",
    b"copy from ",
    b"copy to ",
    b"rename from ",
    b"rename to ",
    b"similarity index ",
    b"dissimilarity index ",
    b"index ",
)
# Lines that GNU diff, svn and quilt put above a file and that carry nothing.
_DECORATION = re.compile(rb"$|diff -(?!-git |-cc |-combined )|Index: |={20,}$")
_COMBINED = (b"diff --cc ", b"diff --combined ", b"@@@ ")
_COLORED = re.compile(rb"\x1b\[[\d;]*m(?:diff --git |--- )")
# What ends a mail: git's signature, the footer of a mailing list, `git format-patch --base`, b4's trailers.
_END_OF_MAIL = re.compile(rb"-- ?$|_{20,}$")
_BASE = re.compile(rb"(?:base-commit|base-tree|prerequisite-(?:patch|change|message)-id|change-id): ")
_MAIL = re.compile(
    rb"--(?: |-)?$|(?:base-commit|base-tree|prerequisite-(?:patch|change|message)-id|change-id): |_{20,}$"
)
_MAIL = re.compile(rb"From [0-9a-f]{7,64} ")
_BINARY = re.compile(rb"GIT binary patch$|Binary files? .* (?:differ|has changed)$")


def malformed(what: str, where: str, why: str | None = None, hint: str = REGENERATE) -> PatchError:
    """Return the error for a patch that must be regenerated."""
    return PatchError(what, where=where, why=why, hint=hint)


class CrlfPatchError(PatchError):
    """A patch whose own headers end in CRLF, because it was written or converted that way as a whole."""


@dataclass
class RawHunk:
    """One hunk.

    Attributes:
        line: The line of its header, from 1.
        section: The text after the second `@@`.
        body: The lines with their markers, without newlines.
    """

    line: int
    old_start: int
    old_count: int
    new_start: int
    new_count: int
    section: bytes
    body: list[bytes]


@dataclass
class RawFile:
    """The part of a patch for one file.

    Attributes:
        line: Its first line, from 1.
        names: The text after `diff --git `.
        old: The text after `--- `.
        new: The text after `+++ `.
        extended: The lines of the extended header, by prefix.
        binary: The line that marks it as binary.
        hunks: Its hunks.
    """

    line: int
    names: bytes | None = None
    old: bytes | None = None
    new: bytes | None = None
    extended: dict[bytes, bytes] = field(default_factory=dict)
    binary: int | None = None
    hunks: list[RawHunk] = field(default_factory=list)


class Scanner:
    """A top-down scanner of one patch. Line numbers count from 1."""

    def __init__(self, data: bytes, name: str) -> None:
        self.name = name
        self.lines = data.split(b"\n")
        self.complete = data.endswith(b"\n")
        if self.complete:
            self.lines.pop()
        self.at = 0

    def scan(self) -> tuple[bytes, list[RawFile]]:
        """Return the text before the first diff, and the files in order. Raises PatchError."""
        preamble = self._preamble()
        files: list[RawFile] = []
        hunks = 0
        while self._next_file(files):
            files.append(self._file(hunks))
            hunks += len(files[-1].hunks)
        return preamble, files

    # what the cursor stands on

    def _line(self, ahead: int = 0) -> bytes | None:
        index = self.at + ahead
        return self.lines[index] if index < len(self.lines) else None

    def _starts(self, prefix: bytes, ahead: int = 0) -> bool:
        line = self._line(ahead)
        return line is not None and line.startswith(prefix)

    def _at_file(self) -> bool:
        return self._starts(b"diff --git ") or (self._starts(b"--- ") and self._starts(b"+++ ", 1))

    def _at_end_of_mail(self) -> bool:
        line = self._line() or b""
        base = self._line(1) if line == b"---" else line  # b4 writes `---` above it
        return bool(_END_OF_MAIL.match(line) or _BASE.match(base or b""))

    # errors

    def where(self, line: int | None = None) -> str:
        """Return a line, by default the current one, as `name:line`."""
        return f"{self.name}:{self.at + 1 if line is None else line}"

    def error(
        self, what: str, *, line: int | None = None, why: str | None = None, hint: str = REGENERATE
    ) -> PatchError:
        """Return an error at a line, by default the current one."""
        return malformed(what, self.where(line), why, hint)

    def _take_header(self) -> bytes:
        """Return the current line, which is a diff header, and move on."""
        line = self.lines[self.at]
        if line.endswith(b"\r"):
            raise CrlfPatchError(
                "The patch itself has CRLF line ends",
                where=self.where(),
                why="A diff header ends in a carriage return, so every hunk line has one too many.",
                hint="Write `eol: lf` on its entry of `patches:`. "
                "To patch a file that has CRLF line ends, only the hunk lines may have them.",
            )
        self.at += 1
        if self.at == len(self.lines) and not self.complete:
            raise self.error("The patch is cut off in the middle of a line", line=self.at)
        return line

    # the parts

    def _preamble(self) -> bytes:
        binary = None
        while (line := self._line()) is not None and not self._at_file():
            if line.startswith(_COMBINED):
                raise self._combined_diff()
            if _COLORED.match(line):
                hint = "Regenerate it without them: `git diff --no-color`."
                raise self.error("The patch has a terminal's color codes", why=_shown(line), hint=hint)
            if HUNK.match(line):
                raise self.error(
                    "A hunk has no file header", why="There is no `---` and `+++` line above it."
                )
            if _BINARY.match(line):
                binary = self.at + 1
            self.at += 1
        if self.at == len(self.lines) and binary:
            raise self._binary_file(binary)
        if self.at == len(self.lines):
            raise self.error(
                "The patch holds no diff",
                line=1,
                why="It is empty." if not any(self.lines) else "No `diff --git`, and no `---` and `+++`.",
            )
        return b"\n".join(self.lines[: self.at]) + (b"\n" if self.at else b"")

    def _combined_diff(self) -> PatchError:
        return self.error(
            "The patch is a combined diff of a merge",
            why="It has several old sides, so what to change is ambiguous.",
            hint="Diff against one parent: `git diff <parent> <merge>`.",
        )

    def _binary_file(self, line: int) -> PatchError:
        return self.error(
            "The patch changes a binary file", line=line, why=_shown(self.lines[line - 1]), hint=TEXT_ONLY
        )

    def _next_file(self, files: list[RawFile]) -> bool:
        """Move to the next file header; return False at the end of the patch."""
        start = self.at
        while (line := self._line()) is not None:
            if self._at_file():
                return True
            if line.startswith(_COMBINED):
                raise self._combined_diff()
            if self._at_end_of_mail():
                self._end_of_mail()
                return False
            if _MAIL.match(line):
                raise self._several_commits()
            if HUNK.match(line):
                raise self.error(
                    "Unexpected text between two hunks",
                    line=start + 1,
                    why="A hunk must follow the one before.",
                )
            if _BINARY.match(line):
                raise self._binary_file(self.at + 1)
            if not _DECORATION.match(line):
                raise self._stray_text(line, after_hunk=self.at == start and bool(files and files[-1].hunks))
            self.at += 1
        return False

    def _stray_text(self, line: bytes, *, after_hunk: bool) -> PatchError:
        if after_hunk and line[:1] in (b" ", b"+", b"-"):
            return self.error(
                "A hunk has more lines than its header states",
                why=f"The hunk above was complete; {_shown(line)} is left over.",
            )
        return self.error(
            "The patch holds text that is part of no file",
            why=f"{_shown(line)} would be skipped by `git apply` without a word.",
            hint="Put text above the first diff, or remove it; "
            "if it was part of a hunk, regenerate the patch.",
        )

    def _end_of_mail(self) -> None:
        """Read the text that ends a mail. Raises PatchError for a diff or another mail in it."""
        while (line := self._line()) is not None:
            if _MAIL.match(line):
                raise self._several_commits()
            is_diff = self._at_file() or line.startswith((b"@@", b"diff ", b"+", b"-"))
            if is_diff and not self._at_end_of_mail():
                raise self.error(
                    "Text follows the end of the patch", why=f"{_shown(line)} may be part of a diff."
                )
            self.at += 1

    def _several_commits(self) -> PatchError:
        return self.error(
            "The file has several commits",
            why=f"{_shown(self.lines[self.at])} begins another one.",
            hint="For a pull request take its `.diff` in place of its `.patch`, which is one patch of all commits.\n"
            f"Or split the file into one patch per commit: git mailsplit -o. {self.name}",
        )

    def _file(self, hunks_before: int) -> RawFile:
        file = RawFile(self.at + 1)
        if self._starts(b"diff --git "):
            file.names = self._take_header()[len(b"diff --git ") :]
            self._extended(file)
            line = self._line()
            if line is not None and _BINARY.match(line.rstrip(b"\r")):
                self._skip_binary(file)
                return file
        if self._starts(b"--- "):
            file.old = self._take_header()[4:]
            if not self._starts(b"+++ "):
                raise self.error("A `---` line has no `+++` line below it", why="The patch may be cut off.")
            file.new = self._take_header()[4:]
            if self._starts(b"@@@ "):
                raise self._combined_diff()
            while self._starts(b"@@"):
                file.hunks.append(self._hunk(hunks_before + len(file.hunks) + 1))
            if not file.hunks:
                raise self.error("A file has no hunk", line=file.line, why="The patch may be cut off.")
        return file

    def _extended(self, file: RawFile) -> None:
        while (line := self._line()) is not None:
            prefix = next((p for p in _EXTENDED if line.startswith(p)), None)
            if prefix is None:
                return
            if prefix in file.extended:
                raise self.error(f"`{prefix.decode().strip()}` occurs twice for one file")
            file.extended[prefix] = self._take_header()[len(prefix) :]

    def _skip_binary(self, file: RawFile) -> None:
        """Skip the body, so that a binary file can be excluded by name."""
        file.binary = self.at + 1
        self.at += 1
        while self._line() is not None and not self._at_file() and not self._at_end_of_mail():
            self.at += 1

    def _hunk(self, number: int) -> RawHunk:
        found = HUNK.match(self.lines[self.at].rstrip(b"\r"))
        if found is None:
            raise self.error("A hunk header is malformed", why=_shown(self.lines[self.at]))
        header = self._take_header()
        old_start, old_count, new_start, new_count = (1 if n is None else int(n) for n in found.groups())
        hunk = RawHunk(self.at, old_start, old_count, new_start, new_count, header[found.end() :], [])
        old, new = old_count, new_count
        if not old and not new:
            raise self.error("A hunk changes nothing", line=self.at)
        while old or new or self._starts(b"\\"):
            line = self._line()
            tag = b"" if line is None else line[:1] or b" "
            if line is None or tag not in (b" ", b"-", b"+", b"\\"):
                if line is not None and not (HUNK.match(line) or self._at_file() or self._at_end_of_mail()):
                    raise self.error(
                        f"A line of hunk {number} begins with neither a space, `+` nor `-`", why=_shown(line)
                    )
                raise self._wrong_count(hunk, number, ended=line is None)
            if tag == b"\\":
                self._check_marker(hunk)
            old -= tag in (b" ", b"-")
            new -= tag in (b" ", b"+")
            if old < 0 or new < 0:
                raise self._wrong_count(hunk, number, ended=False)
            hunk.body.append(line)
            self.at += 1
        if self.at == len(self.lines) and not self.complete and not hunk.body[-1].startswith(b"\\"):
            raise self.error(
                "The patch ends in the middle of a line",
                line=self.at,
                why=f"The last line of hunk {number} has no newline, so it may be cut off.",
                hint="Restore the end of the patch. If only the newline is missing, write `repair: final-newline` on "
                "its entry of `patches:`.\nIf the patched file ends without a newline, the line "
                "`\\ No newline at end of file` must follow it.",
            )
        self._check_ends(hunk)
        return hunk

    def _check_marker(self, hunk: RawHunk) -> None:
        line = self.lines[self.at]
        if line.endswith(b"\r"):
            self._take_header()
        if len(line) < 12 or not line.startswith(b"\\ ") or not hunk.body or hunk.body[-1][:1] == b"\\":
            raise self.error("A `\\ No newline at end of file` line is out of place", why=_shown(line))

    def _check_ends(self, hunk: RawHunk) -> None:
        """Require that a line without a newline is the last of its side."""
        over: set[bytes] = set()
        for offset, line in enumerate(hunk.body):
            tag = line[:1] or b" "
            if tag == b"\\":
                before = hunk.body[offset - 1][:1] or b" "
                over |= {b"-", b"+"} if before == b" " else {before}
            elif tag in over or (tag == b" " and over):
                raise self.error(
                    "A `\\ No newline at end of file` line is out of place",
                    line=hunk.line + offset,
                    why="Lines of the same side follow it.",
                )

    def _wrong_count(self, hunk: RawHunk, number: int, *, ended: bool) -> PatchError:
        """Return the error for a header that disagrees with its body, with the lines counted in the body."""
        self.at = hunk.line
        old = new = 0
        while (line := self._line()) is not None and line[:1] in (b"", b" ", b"-", b"+", b"\\"):
            if self._at_file() or self._at_end_of_mail():
                break
            old += line[:1] in (b"", b" ", b"-")
            new += line[:1] in (b"", b" ", b"+")
            self.at += 1
        return self.error(
            f"The patch ends within hunk {number}: cut off, or a wrong line count"
            if ended
            else f"Hunk {number} has a wrong line count",
            line=hunk.line,
            why=f"Its header states {hunk.old_count} old and {hunk.new_count} new lines; "
            f"its body has {old} and {new}.",
        )


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    return repr(text if len(text) <= 60 else text[:59] + "…")
