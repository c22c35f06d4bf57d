"""The check of patches that `npu-rl patches lint` does."""

from __future__ import annotations

from pathlib import Path

from npu_rl.common.disk import write_named
from npu_rl.common.errors import PatchError, UsageError
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.stack.lint.lint_report import LintedPatch, LintFinding, LintReport, as_fixed, error_finding
from npu_rl.stack.lint.mechanical_repair import Repair
from npu_rl.stack.lint.patch_folder import find_patches
from npu_rl.stack.lint.white_space import white_space_findings
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_header import FIELDS, lint_header, parse_header
from npu_rl.stack.patches.patch_model import Patch
from npu_rl.stack.patches.series import PatchSource


def lint_patches(place: Path, *, strip: int = 1, fix: bool = False) -> LintReport:
    """Check a patch or a folder of patches.

    Args:
        place: A patch, a folder of patches, or the name of a bundled patchset.
        strip: Leading folders to drop from names.
        fix: Whether to write what is mechanical into the files.

    Raises:
        UsageError, PatchError: For what can't be read, and for bundled patches, which nobody may fix.
    """
    sources, findings = find_patches(place)
    report = LintReport(str(place), series=findings)
    for source in sources:
        repair = Repair(source.data, source.name)
        linted = _lint_patch(source, repair, strip)
        if fix and repair.findings:
            _write(source, repair.data, place)
            linted.findings[: len(repair.findings)] = as_fixed(repair.findings)
        report.patches.append(linted)
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


def _lint_patch(source: PatchSource, repair: Repair, strip: int) -> LintedPatch:
    linted = LintedPatch(source.name, findings=list(repair.findings))
    try:
        patch = parse_patch(repair.data, name=source.name, strip=strip)
    except PatchError as error:
        linted.findings.append(error_finding("format", source.name, error))
        return linted
    linted.files, linted.hunks = len(patch.files), len(patch.hunks)
    linted.findings += _header_findings(patch)
    linted.findings += white_space_findings(patch)
    return linted


def _header_findings(patch: Patch) -> list[LintFinding]:
    """Return the faults of npu-rl's own header; one note for a patch that has none of its fields."""
    if not parse_header(patch.header).fields:
        message = f"the header has none of {', '.join(FIELDS)}"
        return [LintFinding("header", Severity.NOTE, patch.name, 1, message)]
    return [
        LintFinding("header", Severity.ERROR, patch.name, 1, problem.rstrip("."))
        for problem in lint_header(patch.header)
    ]
