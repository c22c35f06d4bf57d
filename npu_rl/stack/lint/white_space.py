"""White space and line ends that a patch adds, by the rules of `git apply --whitespace=warn`.

What a patch adds is its meaning, so nothing of it is repaired.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from npu_rl.common.printable import counted
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.stack.lint.lint_report import LintFinding
from npu_rl.stack.patches.patch_model import FilePatch, Hunk, HunkLine, Patch

_SPACE_BEFORE_TAB = re.compile(rb"\t* +\t")
_SPACE = b" \t\r\v\f"


def white_space_findings(patch: Patch) -> Iterator[LintFinding]:
    """Yield a finding per hunk and kind, at the first line that has it."""
    for file in patch.files:
        yield from _line_ends(patch.name, file)
        has_crlf = any(line.text.endswith(b"\r") for hunk in file.hunks for line in hunk.lines)
        for hunk in file.hunks:
            yield from _spaces(patch.name, file, hunk, has_crlf)


def lines_of(hunk: Hunk) -> Iterator[tuple[int, HunkLine]]:
    """Yield the lines of a hunk with their lines in the patch."""
    at = hunk.line
    for line in hunk.lines:
        at += 1
        yield at, line
        at += not line.has_newline  # `\\ No newline at end of file` follows


def _spaces(name: str, file: FilePatch, hunk: Hunk, has_crlf: bool) -> Iterator[LintFinding]:
    trailing: list[int] = []
    before_tab: list[int] = []
    for at, line in lines_of(hunk):
        if line.tag != "+":
            continue
        text = line.text[:-1] if has_crlf and line.text.endswith(b"\r") else line.text
        if text and text[-1] in _SPACE:
            trailing.append(at)
        if _SPACE_BEFORE_TAB.match(text):
            before_tab.append(at)
    for found, what in (
        (trailing, "trailing white space"),
        (before_tab, "a space before a tab in its indent"),
    ):
        if found:
            have = "an added line has" if len(found) == 1 else f"{counted(len(found), 'added line')} have"
            message = f"{have} {what} ({file.path})"
            yield LintFinding("white-space", Severity.ADVICE, name, found[0], message)
    last = hunk.lines[-1]
    if last.tag == "+" and not last.text.strip(_SPACE):  # without context below it, the file ends here
        end = max(at for at, _ in lines_of(hunk))
        yield LintFinding(
            "white-space", Severity.ADVICE, name, end, f"{file.path} gets an empty line at its end"
        )


def _line_ends(name: str, file: FilePatch) -> Iterator[LintFinding]:
    lines = [found for hunk in file.hunks for found in lines_of(hunk)]
    old = [line for _, line in lines if line.tag != "+" and line.text]
    added = [(at, line) for at, line in lines if line.tag == "+" and line.text]
    with_cr = [at for at, line in added if line.text.endswith(b"\r")]
    without = [at for at, line in added if not line.text.endswith(b"\r")]
    old_with_cr = sum(line.text.endswith(b"\r") for line in old)
    if with_cr and old and not old_with_cr:
        message = f"{counted(len(with_cr), 'added line')} with CRLF, in a file of LF ({file.path})"
        yield LintFinding("line-ends", Severity.ADVICE, name, with_cr[0], message)
    elif without and old and old_with_cr == len(old):
        message = f"{counted(len(without), 'added line')} with LF, in a file of CRLF ({file.path})"
        yield LintFinding("line-ends", Severity.ADVICE, name, without[0], message)
    elif with_cr and not old:
        message = f"the new file {file.path} has CRLF line ends"
        yield LintFinding("line-ends", Severity.ADVICE, name, with_cr[0], message)
    end = next((at for at, line in added if not line.has_newline), 0)
    if end and not any(line.tag == "-" and not line.has_newline for _, line in lines):
        message = f"{file.path} gets a last line without a newline"
        yield LintFinding("final-newline", Severity.ADVICE, name, end, message)
