"""Findings in a recipe, as `recipes check`, `plan`, `train --dry-run` and `train` report them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from npu_rl.common.yaml_documents.problems import KeyPath, dotted


class Severity(str, Enum):
    """ERROR: `train` refuses. ADVICE: the run works, but not as meant or not as fast. NOTE: good to know."""

    ERROR = "error"
    ADVICE = "advice"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One error, advice or note about a recipe, reported once.

    Attributes:
        rule: Stable id in kebab-case.
        severity: What it means for a run.
        path: The recipe's key to edit; empty if there is none.
        key: That key as it is written, else the trainer's.
        trainer_key: The trainer's (Hydra) key, "" if there is none.
        message: The fact, with its figures and the code it is from (file:line).
        fix: What to write, in the recipe's words; "" where nothing helps.
        where: "file:line", or the command line's argument.
        certain: Whether `plan: {except: {ID: reason}}` can't override it.
    """

    rule: str
    severity: Severity
    path: KeyPath = field(repr=False)
    trainer_key: str
    message: str
    fix: str
    where: str
    certain: bool = True
    key: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", dotted(self.path) if self.path else self.trainer_key)

    def __str__(self) -> str:
        key = f"{self.key}: " if self.key else ""
        fix = f"; fix: {self.fix}" if self.fix else ""
        return f"{self.where}: {key}{self.message}{fix} [{self.rule}]"

    def lines(self) -> tuple[str, ...]:
        """Return the finding as every command prints it: id, key and fact; place; fix, if there is one."""
        key = f"{self.key}: " if self.key and not self.message.startswith(f"{self.key}: ") else ""
        return (
            f"{self.severity.value}[{self.rule}] {key}{self.message}",
            f"  at {self.where}",
            *((f"  fix: {self.fix}",) if self.fix else ()),
        )


def file_finding(rule: str, severity: Severity, where: object, message: str, fix: str = "") -> Finding:
    """Return a finding about a file or folder, which is under no key of a recipe."""
    return Finding(rule, severity, (), "", message, fix, str(where))
