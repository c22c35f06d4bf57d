"""The check of patches that `npu-rl patches lint` does."""

from __future__ import annotations

from pathlib import Path

from npu_rl.common.errors import PatchError
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.stack.lint.lint_report import LintedPatch, LintFinding, LintReport, error_finding
from npu_rl.stack.lint.patch_folder import find_patches
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_header import FIELDS, lint_header, parse_header
from npu_rl.stack.patches.patch_model import Patch
from npu_rl.stack.patches.series import PatchSource


def lint_patches(place: Path, *, strip: int = 1) -> LintReport:
    """Check a patch or a folder of patches. Raises UsageError, PatchError for what can't be read."""
    sources, findings = find_patches(place)
    report = LintReport(str(place), series=findings)
    for source in sources:
        report.patches.append(_lint_patch(source, strip))
    return report


def _lint_patch(source: PatchSource, strip: int) -> LintedPatch:
    linted = LintedPatch(source.name)
    try:
        patch = parse_patch(source.data, name=source.name, strip=strip)
    except PatchError as error:
        linted.findings.append(error_finding("format", source.name, error))
        return linted
    linted.files, linted.hunks = len(patch.files), len(patch.hunks)
    linted.findings += _header_findings(patch)
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
