"""The checks of `npu-rl patches lint`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Protocol

from npu_rl.common.disk import write_named
from npu_rl.common.errors import PatchError, UsageError
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.stack.lint.compared_files import FolderFiles
from npu_rl.stack.lint.lint_report import LintedPatch, LintFinding, LintReport, as_fixed, error_finding
from npu_rl.stack.lint.mechanical_repair import Repair
from npu_rl.stack.lint.patch_folder import find_patches
from npu_rl.stack.lint.python_names import PythonChecker
from npu_rl.stack.lint.series_state import AppliedFile, SeriesState
from npu_rl.stack.lint.smallest_diff import ChangedText, changed_file, changed_hunks, smaller_diffs
from npu_rl.stack.lint.white_space import white_space_findings
from npu_rl.stack.lock.lock_model import LockedPatch
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_header import FIELDS, lint_header, parse_header
from npu_rl.stack.patches.patch_model import FilePatch, Patch
from npu_rl.stack.patches.series import PatchSource


class Against(Protocol):
    """The target of a check."""

    def locked(self, source: PatchSource) -> LockedPatch | None:
        """Return a patch as a lock has it; None if no lock has it."""

    def state(self, source: PatchSource, patch: Patch) -> SeriesState:
        """Return the files as the patches before this one leave them. Raises PatchError."""


class AgainstFolder:
    """The files of a folder, to which all patches apply one after the other."""

    def __init__(self, folder: Path) -> None:
        self._state = SeriesState(FolderFiles(folder.absolute()))

    def locked(self, source: PatchSource) -> LockedPatch | None:  # noqa: ARG002
        """Return None."""
        return None

    def state(self, source: PatchSource, patch: Patch) -> SeriesState:  # noqa: ARG002
        """Return the one state."""
        return self._state


def lint_patches(
    place: Path,
    *,
    strip: int | None = None,
    fix: bool = False,
    against: Against | None = None,
    against_name: str | None = None,
) -> LintReport:
    """Check a patch or a folder of patches.

    Args:
        place: A patch, a folder of patches, or the name of a bundled patchset.
        strip: Leading folders to drop from names; None for that of the lock, else 1.
        fix: Whether to write what is mechanical into the files.
        against: The target of the patches; None to check the patches alone.
        against_name: Its name, for the report.

    Raises:
        UsageError, PatchError: For a file that can't be read, and for bundled patches, which can't be fixed in place.
    """
    sources, findings = find_patches(place)
    report = LintReport(str(place), against_name, series=findings)
    texts: list[ChangedText] = []
    with closing(PythonChecker()) as python:
        for source in sources:
            repair = Repair(source.data, source.name)
            linted = _lint_patch(source, repair, strip, against, texts, python)
            if fix and repair.findings:
                _write(source, repair.data, place)
                linted.findings[: len(repair.findings)] = as_fixed(repair.findings)
            report.patches.append(linted)
    by_name = {linted.name: linted for linted in report.patches}
    for finding in smaller_diffs(texts):
        by_name[finding.patch].findings.append(finding)
    return report


def _write(source: PatchSource, data: bytes, place: Path) -> None:
    assert source.path is not None
    if not source.path.is_relative_to(place):
        raise UsageError(
            "A bundled patch can't be fixed in place",
            where=str(source.path),
            hint="Copy the folder, and name the copy.",
        )
    write_named(source.path, data)


def _lint_patch(
    source: PatchSource,
    repair: Repair,
    strip: int | None,
    against: Against | None,
    texts: list[ChangedText],
    python: PythonChecker,
) -> LintedPatch:
    """Check one patch, and collect the texts that git may have a smaller diff for."""
    linted = LintedPatch(source.name, findings=list(repair.findings))
    locked = None if against is None else against.locked(source)
    try:
        patch = _parsed(source.name, repair.data, strip, locked)
    except PatchError as error:
        linted.findings.append(error_finding("format", source.name, error))
        return linted
    linted.files, linted.hunks = len(patch.files), len(patch.hunks)
    linted.findings += _header_findings(patch)
    linted.findings += white_space_findings(patch)
    if against is None:
        texts += changed_hunks(patch)
        changes = [_new_file(file) for file in patch.files if file.old_path is None]
    else:
        try:
            outcome = against.state(source, patch).apply(patch)
        except PatchError as error:
            linted.findings.append(error_finding("does-not-apply", source.name, error))
            return linted
        linted.proven, changes = outcome.proven, outcome.changes
        linted.findings += outcome.findings
        for change in changes:
            texts += changed_file(patch.name, change.file, change.before or b"", change.after or b"")
    linted.findings += (found for change in changes for found in python.findings(patch.name, change))
    return linted


def _new_file(file: FilePatch) -> AppliedFile:
    """Return the change that creates a file, which requires no existing file."""
    return AppliedFile(file, None, b"".join(line for hunk in file.hunks for line in hunk.new_lines), {})


def _parsed(name: str, data: bytes, strip: int | None, locked: LockedPatch | None) -> Patch:
    if locked is None:
        return parse_patch(data, name=name, strip=1 if strip is None else strip)
    return parse_patch(
        data,
        name=name,
        strip=locked.strip if strip is None else strip,
        directory=locked.directory,
        exclude=locked.exclude,
    )


def _header_findings(patch: Patch) -> list[LintFinding]:
    """Return the faults of npu-rl's own header; one note for a patch without any of its fields."""
    if not parse_header(patch.header).fields:
        message = f"the header lacks all of {', '.join(FIELDS)}"
        return [LintFinding("header", Severity.NOTE, patch.name, 1, message)]
    return [
        LintFinding("header", Severity.ERROR, patch.name, line, message.rstrip("."))
        for line, message in lint_header(patch.header, commands=True)
    ]
