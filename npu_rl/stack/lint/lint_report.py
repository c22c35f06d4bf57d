"""Findings in patches, as `npu-rl patches lint` prints them."""

from __future__ import annotations

from dataclasses import dataclass, field

from npu_rl.common.printable import counted
from npu_rl.common.yaml_documents.finding import Severity


@dataclass(frozen=True)
class LintFinding:
    """One error, advice or note about a patch or its folder.

    Attributes:
        rule: Stable id in kebab-case.
        severity: ERROR: npu-rl or git would refuse the patch. ADVICE: it works. NOTE: a check that was left out.
        patch: The file, by its path below the folder.
        line: The line in it, from 1; 0 for the whole file.
        message: The fact.
        why: The evidence, on several lines if need be.
        fix: The remedy.
    """

    rule: str
    severity: Severity
    patch: str
    line: int
    message: str
    why: str = ""
    fix: str = ""

    def text(self) -> str:
        """Return the finding as every command prints it: id and fact; place, with the evidence below it; fix."""
        place = f"{self.patch}:{self.line}" if self.line else self.patch
        lines = [f"{self.severity.value}[{self.rule}] {self.message}", f"  at {place}"]
        lines += [f"    {line}" for line in self.why.splitlines()]
        return "\n".join([*lines, f"  fix: {self.fix}"] if self.fix else lines)


@dataclass
class LintedPatch:
    """One patch, with the number of its files and hunks."""

    name: str
    files: int = 0
    hunks: int = 0


@dataclass
class LintReport:
    """The patches of a file or folder, in order of application.

    Attributes:
        path: The file or folder.
        against: The manifest or folder that they were applied to, or None.
    """

    path: str
    against: str | None = None
    patches: list[LintedPatch] = field(default_factory=list)
    findings: list[LintFinding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Return whether there is no error."""
        return not self._count(Severity.ERROR)

    def _count(self, severity: Severity) -> int:
        return sum(found.severity is severity for found in self.findings)

    def summary(self) -> str:
        """Return the last line of the report."""
        errors, advice = self._count(Severity.ERROR), self._count(Severity.ADVICE)
        words = [
            counted(len(self.patches), "patch").replace("patchs", "patches"),
            counted(sum(patch.hunks for patch in self.patches), "hunk"),
            counted(errors, "error") if errors else "no error",
        ]
        return ", ".join([*words, f"{advice} advice"] if advice else words)
