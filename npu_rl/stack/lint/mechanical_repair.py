"""Repair of damage to a patch that can be undone without knowing the patched files.

Editors and mail convert line ends, drop the newline at the end and the space of an empty context line, and people
who edit a hunk by hand forget its header. No repair moves a line, so that line numbers in messages stay valid.
"""

from __future__ import annotations

import re
from dataclasses import replace

from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.stack.lint.lint_report import LintFinding
from npu_rl.stack.patches.scan_hunks import HUNK

_BOM = b"\xef\xbb\xbf"
_NEW_NAME = re.compile(rb"^\+\+\+ [^\n]*(?=\n@@ -\d)", re.M)
_HUNK_WITH_CR = re.compile(rb"^(@@ -\d[^\n]*)\r$", re.M)
_BETWEEN = re.compile(
    rb"$|diff |Index: |={20,}$|@@ "
)  # what may follow a hunk, but for `---` and a signature
_SIGNATURE = 3  # lines from `-- ` to the end, at most: git's version, and an empty one


class Repair:
    """The repair of one patch.

    Attributes:
        findings: One for each repair, top-down.
        data: The repaired patch.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self._name = name
        self.findings: list[LintFinding] = []
        self.data = data
        if b"\0" in data:  # not text
            return
        if data.startswith(_BOM):
            data = data.removeprefix(_BOM)
            self._found("format", 1, "the patch begins with a UTF-8 byte-order mark")
        original = self._with_line_feeds(data)
        data = self._with_last_newline(original)
        self._lines = data.split(b"\n")
        self._count = len(self._lines) - 1
        self._number = 0
        self._is_cut_off = False
        self._repair_hunks()
        self.data = b"\n".join(self._lines)
        if self._is_cut_off and data != original:  # the line may be half a line: a newline would hide that
            self.data = self.data[:-1]
            self.findings = [
                replace(found, fix="") if found.rule == "final-newline" else found for found in self.findings
            ]

    def _found(self, rule: str, line: int, message: str, severity: Severity = Severity.ERROR) -> None:
        self.findings.append(LintFinding(rule, severity, self._name, line, message, fix="--fix"))

    def _with_line_feeds(self, data: bytes) -> bytes:
        """Return the patch with LF for each CRLF that belongs to the patch and not to the patched files."""
        if b"\r" not in data:
            return data
        names = _NEW_NAME.findall(data)
        if names and all(name.endswith(b"\r") for name in names):
            self._found("line-ends", 1, "the patch itself has CRLF line ends")
            return data.replace(b"\r\n", b"\n").removesuffix(b"\r")
        for header in _HUNK_WITH_CR.finditer(data):
            line = data.count(b"\n", 0, header.start()) + 1
            self._found("line-ends", line, "the hunk header ends in a carriage return")
        return _HUNK_WITH_CR.sub(rb"\1", data)

    def _with_last_newline(self, data: bytes) -> bytes:
        if not data or data.endswith(b"\n"):
            return data
        line = data.count(b"\n") + 1
        above, last = data.rsplit(b"\n", 2)[-2:] if line > 1 else (b"", data)
        what = "the last line of the patch has no newline"
        if last.startswith(b"\\") or above == b"-- ":
            self._found("final-newline", line, what, Severity.ADVICE)
        else:
            self._found("final-newline", line, f"{what}; see that it is not cut off")
        return data + b"\n"

    # -- hunks

    def _repair_hunks(self) -> None:
        at, shift, in_file = 0, 0, False
        while at < self._count:
            line = self._lines[at]
            if line.startswith(b"diff --git ") or self._at_names(at):
                at, shift, in_file = at + (1 if line.startswith(b"diff ") else 2), 0, True
                continue
            header = HUNK.match(line) if in_file else None
            if header is None:
                at += 1
                continue
            self._number += 1
            at, shift = self._repair_hunk(at, header, shift)

    def _at_names(self, at: int) -> bool:
        return self._lines[at].startswith(b"--- ") and self._lines[at + 1].startswith(b"+++ ")

    def _repair_hunk(self, at: int, header: re.Match[bytes], shift: int) -> tuple[int, int]:
        """Correct one hunk; return the line after it, and by how many lines the new side is longer so far."""
        old_start, old, new_start, new = (1 if text is None else int(text) for text in header.groups())
        end = self._stated_end(at + 1, old, new)
        if end is None:
            end = self._last_line(at + 1) + 1
            tags = [line[:1] for line in self._lines[at + 1 : end]]
            has_old = sum(tag in (b"", b" ", b"-") for tag in tags)
            has_new = sum(tag in (b"", b" ", b"+") for tag in tags)
            short = has_old < old or has_new < new
            self._is_cut_off = short and end == self._count
            if not tags or self._is_cut_off or not self._may_end(end):
                return end, shift  # cut off, or something else than a count is wrong: the parser explains it
        else:
            has_old, has_new = old, new
        blank = [n for n in range(at + 1, end) if not self._lines[n]]
        for n in blank:
            self._lines[n] = b" "
        if blank:
            what = "an empty context line" if len(blank) == 1 else f"{len(blank)} empty context lines"
            self._found("white-space", blank[0] + 1, f"{what} lost the space", Severity.ADVICE)
        above = old_start - 1 if has_old else old_start
        if above < 0:
            return end, shift
        right = above + shift + (1 if has_new else 0)
        self._rewrite(at, (old_start, old, has_old), (new_start, new, right, has_new))
        return end, shift + has_new - has_old

    def _rewrite(self, at: int, old: tuple[int, int, int], new: tuple[int, int, int, int]) -> None:
        """Correct a hunk's header: its counts, and the start of its new side, which follows from the old one."""
        (old_start, old_count, has_old), (new_start, new_count, right, has_new) = old, new
        if (old_count, new_count) != (has_old, has_new):
            stated = f"hunk {self._number} states {old_count} old and {new_count} new lines"
            self._found("counts", at + 1, f"{stated}; its body has {has_old} and {has_new}")
        elif new_start != right:
            stated = f"hunk {self._number} starts at line {new_start} of the new file"
            self._found("counts", at + 1, f"{stated}; after the hunks above it is {right}")
        else:
            return
        line = self._lines[at]
        left, middle, rest = line.split(b" ", 3)[1:]
        left = left if old_count == has_old else _side(b"-", old_start, has_old)
        same = new_count == has_new and new_start == right
        middle = middle if same else _side(b"+", right, has_new)
        self._lines[at] = b" ".join((b"@@", left, middle, rest))

    def _stated_end(self, at: int, old: int, new: int) -> int | None:
        """Return the line after a hunk that matches its header; None if it does not match."""
        while at < self._count and (old or new or self._lines[at].startswith(b"\\")):
            tag = self._lines[at][:1] or b" "
            if tag not in (b" ", b"-", b"+", b"\\"):
                return None
            old -= tag in (b" ", b"-")
            new -= tag in (b" ", b"+")
            if old < 0 or new < 0:
                return None
            at += 1
        return None if old or new or not self._may_end(at) else at

    def _last_line(self, at: int) -> int:
        """Return the last line of a hunk whose header is wrong. Empty lines at its end don't count as part of it."""
        last = at - 1
        while at < self._count and not (self._ends_here(at)):
            if self._lines[at]:
                last = at
            at += 1
        return last

    def _ends_here(self, at: int) -> bool:
        line = self._lines[at]
        if self._at_names(at) and (at + 2 >= self._count or HUNK.match(self._lines[at + 2])):
            return True
        return (line and line[:1] not in (b" ", b"-", b"+", b"\\")) or self._at_signature(at)

    def _at_signature(self, at: int) -> bool:
        return self._lines[at] in (b"-- ", b"--") and self._count - at <= _SIGNATURE

    def _may_end(self, at: int) -> bool:
        """Return whether a hunk may end before a line, because the text from there on belongs to no hunk."""
        if at >= self._count or self._at_names(at) or self._at_signature(at):
            return True
        return _BETWEEN.match(self._lines[at]) is not None


def _side(sign: bytes, start: int, count: int) -> bytes:
    return b"%s%d" % (sign, start) if count == 1 else b"%s%d,%d" % (sign, start, count)
