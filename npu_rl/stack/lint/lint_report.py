"""Findings in patches, as `npu-rl patches lint` prints them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from npu_rl.common.errors import NpuRlError
from npu_rl.common.printable import counted
from npu_rl.common.yaml_documents.finding import Severity


@dataclass(frozen=True)
class LintFinding:
    """One error, advice or note about a patch or its folder.

    Attributes:
        rule: Stable id in kebab-case.
        severity: ERROR: npu-rl or git would refuse or misplace the patch. ADVICE: it works. NOTE: what was not checked.
        patch: The file, by its path below the folder.
        line: The line in it, from 1; 0 for the whole file.
        message: The fact.
        why: The evidence, on several lines if need be.
        fix: What to do.
        fixed: Whether `--fix` has done it.
    """

    rule: str
    severity: Severity
    patch: str
    line: int
    message: str
    why: str = ""
    fix: str = ""
    fixed: bool = False

    def text(self) -> str:
        """Return the finding as every command prints it: id and fact; place, with the evidence below it; fix."""
        place = f"{self.patch}:{self.line}" if self.line else self.patch
        fix = "fixed" if self.fixed else f"fix: {self.fix}" if self.fix else ""
        lines = [f"{self.severity.value}[{self.rule}] {self.message}", f"  at {place}"]
        lines += [f"    {line}" for line in self.why.splitlines()]
        return "\n".join([*lines, f"  {fix}"] if fix else lines)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**vars(self), "severity": self.severity.value}


def error_finding(rule: str, patch: str, error: NpuRlError) -> LintFinding:
    """Return an error of the parser or the applier as a finding at the line that it names."""
    where = error.where or ""
    line = where.partition(f"{patch}:")[2].partition(",")[0]
    number = int(line) if line.isdecimal() else 0
    hint = " ".join((error.hint or "").split())
    hint = hint.replace("Set `strip` of the patch entry to the number", "Give --strip, the number")
    hint = hint.replace("Set `strip` of the patch entry", "Give --strip N")
    return LintFinding(rule, Severity.ERROR, patch, number, error.what, error.why or "", hint)


@dataclass
class LintedPatch:
    """One patch.

    Attributes:
        name: Its path below the folder.
        files: The number of files that it changes.
        hunks: The number of its hunks.
        proven: The files whose content is the one of their `index` line, before and after.
        findings: Findings, top-down.
    """

    name: str
    files: int = 0
    hunks: int = 0
    proven: int = 0
    findings: list[LintFinding] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain data without the findings."""
        return {"name": self.name, "files": self.files, "hunks": self.hunks, "proven": self.proven}


@dataclass
class LintReport:
    """The patches of a file or folder, in order of application.

    Attributes:
        path: The file or folder.
        against: The manifest or folder that they were applied to, or None.
        series: Findings about the order and the names.
    """

    path: str
    against: str | None = None
    series: list[LintFinding] = field(default_factory=list)
    patches: list[LintedPatch] = field(default_factory=list)

    @property
    def findings(self) -> list[LintFinding]:
        """All findings."""
        return [*self.series, *(found for patch in self.patches for found in patch.findings)]

    @property
    def ok(self) -> bool:
        """Return whether no error is left."""
        return not any(found.severity is Severity.ERROR and not found.fixed for found in self.findings)

    def summary(self) -> str:
        """Return the last line of the report."""
        left = [found for found in self.findings if not found.fixed]
        errors = sum(found.severity is Severity.ERROR for found in left)
        advice = sum(found.severity is Severity.ADVICE for found in left)
        words = [
            counted(len(self.patches), "patch").replace("patchs", "patches"),
            counted(sum(patch.hunks for patch in self.patches), "hunk"),
            counted(errors, "error") if errors else "no error",
        ]
        if advice:
            words.append(f"{advice} advice")
        if fixed := len(self.findings) - len(left):
            words.append(f"{fixed} fixed")
        if self.against is not None:
            proven = sum(patch.proven for patch in self.patches)
            words.append(
                f"{proven} of {counted(sum(p.files for p in self.patches), 'file')} proven by index ids"
            )
        return ", ".join(words)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "ok": self.ok,
            "path": self.path,
            "against": self.against,
            "patches": [patch.to_json() for patch in self.patches],
            "findings": [found.to_json() for found in self.findings],
        }


def as_fixed(findings: list[LintFinding]) -> list[LintFinding]:
    """Return findings that `--fix` has dealt with."""
    return [replace(found, fixed=bool(found.fix)) for found in findings]
