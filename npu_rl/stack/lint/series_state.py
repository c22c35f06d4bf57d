"""The state of files after each patch in a series, and the faults of the next one there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from npu_rl.common.errors import PatchError
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.stack.git.objects import object_id
from npu_rl.stack.hunks.hunk_headings import misplaced
from npu_rl.stack.hunks.hunk_match import apply_exact, explain, find_all, fits, locate, split_lines
from npu_rl.stack.lint.compared_files import ComparedFiles
from npu_rl.stack.lint.lint_report import LintFinding
from npu_rl.stack.patches.patch_model import FilePatch, Hunk, Patch

_MOST = 20  # hunks of a patch that don't fit; to find the closest place of each takes up to 0.1 s
_RELEASES = 3  # named in one finding
_PLACES = 5  # named in one finding


class _Refused(Enum):
    """The mark of a file that is not the one the patch was made for; None is an absent file."""

    REFUSED = 0


@dataclass(frozen=True)
class AppliedFile:
    """One file before and after a patch; None is an absent file. `offsets` has the offsets of moved hunks."""

    file: FilePatch
    before: bytes | None
    after: bytes | None
    offsets: dict[int, int]


@dataclass
class PatchOutcome:
    """The outcome of one patch at its position in the series.

    Attributes:
        changes: The files that it applies to.
        proven: Number of files whose content matches their `index` line, before and after.
        findings: The reasons why it doesn't apply, or applies at a wrong place.
    """

    changes: list[AppliedFile] = field(default_factory=list)
    proven: int = 0
    findings: list[LintFinding] = field(default_factory=list)


class SeriesState:
    """Files to which patches are applied one after the other."""

    def __init__(self, files: ComparedFiles) -> None:
        self._files = files
        self._changed: dict[str, bytes | None] = {}
        self._unknown: dict[str, str] = {}  # path -> the patch that did not apply to it

    def has(self, path: str) -> bool:
        """Return whether there is a file now."""
        try:
            return self._content(path) is not None
        except PatchError:
            return True

    def apply(self, patch: Patch) -> PatchOutcome:
        """Apply a patch to the files that it fits, and return the outcome with its faults."""
        outcome = PatchOutcome()
        for file in patch.files:
            if file.path in self._unknown:
                message = f"{file.path} was not checked: {self._unknown[file.path]} does not apply to it"
                outcome.findings.append(
                    LintFinding("does-not-apply", Severity.NOTE, patch.name, file.line, message)
                )
                continue
            self._unknown[file.path] = patch.name
            before = self._before(patch.name, file, outcome.findings)
            if isinstance(before, _Refused):
                continue
            fits = self._holds_old_id(patch.name, file, before, outcome.findings)
            change = _change(patch.name, file, before, outcome.findings)
            if change is None:
                continue
            del self._unknown[file.path]
            self._changed[file.path] = change.after
            outcome.changes.append(change)
            outcome.proven += fits and _holds_new_id(patch.name, change, outcome.findings)
        return outcome

    def _content(self, path: str) -> bytes | None:
        return self._changed[path] if path in self._changed else self._files.read(path)

    def _before(self, name: str, file: FilePatch, findings: list[LintFinding]) -> bytes | _Refused | None:
        """Return the file before the patch; `_Refused` if it can't be the one that the patch was made for."""
        try:
            before = self._content(file.path)
        except PatchError as error:
            findings.append(_does_not_apply(name, file.line, error.what, error.why or "", error.hint or ""))
            return _Refused.REFUSED
        if (before is None) == (file.old_path is None):
            return before
        if before is None:
            fix = "see whether --strip is right"
            findings.append(_does_not_apply(name, file.line, f"{file.path} does not exist", fix=fix))
        else:
            message = f"{file.path} is created by the patch, and exists already"
            findings.append(_does_not_apply(name, file.line, message))
        return _Refused.REFUSED

    def _holds_old_id(
        self, name: str, file: FilePatch, before: bytes | None, findings: list[LintFinding]
    ) -> bool:
        """Return whether the file matches the index line; if not, add a finding with the releases whose file does."""
        if file.ids is None:
            return False
        oid = file.ids[0]
        if _is_id(before, oid):
            return True
        releases = self._files.releases(file.path, oid)
        more = f" and {len(releases) - _RELEASES} more" if len(releases) > _RELEASES else ""
        fits = f"It is that of {', '.join(releases[:_RELEASES])}{more}." if releases else ""
        message = (
            f"the index line of {file.path} names {oid[:12]}; here the file is {_blob(before, oid)[:12]}"
        )
        findings.append(LintFinding("index", Severity.ADVICE, name, file.line, message, fits))
        return False


def _does_not_apply(name: str, line: int, message: str, why: str = "", fix: str = "") -> LintFinding:
    return LintFinding("does-not-apply", Severity.ERROR, name, line, message, why, fix)


def _change(
    name: str, file: FilePatch, before: bytes | None, findings: list[LintFinding]
) -> AppliedFile | None:
    """Return a file's change; None if it doesn't apply, not even at other lines."""
    offsets: dict[int, int] = {}
    if before is not None:
        bad = sum(one.rule == "does-not-apply" for one in findings)
        found = list(_hunk_findings(name, file, before, _MOST - bad, offsets))
        findings += found
        if any(one.rule == "does-not-apply" for one in found):
            return None
    try:
        after = apply_exact(before, file, name=name, offsets=offsets)
    except PatchError as error:
        findings.append(_does_not_apply(name, file.line, error.what, error.why or ""))
        return None
    return AppliedFile(file, before, after, offsets)


def _holds_new_id(name: str, change: AppliedFile, findings: list[LintFinding]) -> bool:
    """Return whether the patch produces the file of the index line, given that the file before it matches."""
    assert change.file.ids is not None
    oid = change.file.ids[1]
    if _is_id(change.after, oid):
        return True
    has = _blob(change.after, oid)[:12]
    message = f"the patch makes {change.file.path} {has}, and its index line names {oid[:12]}"
    why = "The file before is the one that the index line names, so the hunks were changed or cut off."
    findings.append(LintFinding("index", Severity.ERROR, name, change.file.line, message, why))
    return False


def _blob(content: bytes | None, like: str) -> str:
    """Return the blob id of a file, in SHA-256 if `like` is too long for SHA-1; zeros for an absent file."""
    if content is None:
        return "0" * max(len(like), 40)
    if len(like) > 40:
        return hashlib.sha256(b"blob %d\0" % len(content) + content).hexdigest()
    return object_id("blob", content)


def _is_id(content: bytes | None, oid: str) -> bool:
    return _blob(content, oid).startswith(oid)


def _hunk_findings(
    name: str, file: FilePatch, before: bytes, most: int, offsets: dict[int, int]
) -> Iterator[LintFinding]:
    """Yield findings on hunks that don't fit at their line, and collect the offsets of those that fit elsewhere.

    Up to `most` hunks that fit nowhere are each reported with the closest place.
    """
    unexplained = 0
    lines = split_lines(before)
    for hunk in file.hunks:
        if fits(lines, hunk, hunk.old_index):
            if (hunk.old_start, hunk.old_count) == (1, 0):  # for git it is at the beginning of the file
                message = (
                    f"git refuses hunk {hunk.number} of {file.path}, which adds below line 1, without context"
                )
                fix = "write it with context"
                yield LintFinding("does-not-apply", Severity.ERROR, name, hunk.line, message, fix=fix)
            yield from _twins(name, file, hunk, before)
            continue
        location = locate(before, hunk)
        if location.kind == "offset":
            offsets[hunk.number] = location.offset
            message = f"hunk {hunk.number} fits {file.path} only {location.offset:+d} lines from its line"
            fix = "refresh the patch"
            yield LintFinding(
                "offset", Severity.ERROR, name, hunk.line, message, f"At line {location.line}.", fix
            )
            continue
        if most <= 0:
            unexplained += 1
            continue
        most -= 1
        message = f"hunk {hunk.number} does not fit {file.path} at line {hunk.old_index + 1}"
        why = explain(before, hunk, location)
        if location.kind == "already_applied":
            message = f"the change of hunk {hunk.number} is already in {file.path}"
        yield LintFinding("does-not-apply", Severity.ERROR, name, hunk.line, message, why)
    if unexplained:
        message = f"{unexplained} more hunks do not fit {file.path}"
        yield LintFinding("does-not-apply", Severity.ERROR, name, file.line, message)


def _twins(name: str, file: FilePatch, hunk: Hunk, before: bytes) -> Iterator[LintFinding]:
    """Yield a finding if a hunk is not in its heading's function, or if only its line number determines its place."""
    at = hunk.old_index + 1
    elsewhere = misplaced(before, hunk, at, file.path)
    if elsewhere is not None:
        message = f"hunk {hunk.number} is in another place of {file.path} than its heading names"
        fix = "refresh the patch, or remove the heading if the place is right"
        yield LintFinding("twin", Severity.ERROR, name, hunk.line, message, elsewhere, fix)
        return
    old = hunk.old_lines
    if before.count(b"".join(old)) < 2:
        return
    places = [n + 1 for n in find_all(split_lines(before), old) if n + 1 != at]
    places = [n for n in places if misplaced(before, hunk, n, file.path) is None]
    if places and hunk.old_count:
        listed = ", ".join(map(str, places[:_PLACES])) + (" and others" if len(places) > _PLACES else "")
        message = f"only its line number keeps hunk {hunk.number} from fitting {file.path} at line {listed}"
        yield LintFinding("twin", Severity.ADVICE, name, hunk.line, message, fix="write it with more context")
