"""The refusal of a recipe that `train` can't run, with its findings."""

from __future__ import annotations

from collections.abc import Sequence

from npu_rl.common.errors import RecipeError
from npu_rl.common.printable import counted
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.recipes.recipe.schema import Recipe


class RefusedRecipe(RecipeError):
    """A recipe that can't be run as it is; `findings` has all findings, errors first."""

    def __init__(self, recipe: Recipe, findings: Sequence[Finding], refusing: Sequence[Finding]) -> None:
        """Describe the refusal; `refusing` are the findings that count, for a rehearsal without those of `plan`."""
        errors = [found for found in refusing if found.severity is Severity.ERROR]
        what = f"{recipe.name} can't be run as it is: {counted(len(errors), 'error')}"
        if len(findings) == 1:
            (only,) = findings
            key = f"{only.key}: " if only.key else ""
            hint = only.fix[:1].upper() + only.fix[1:]
            super().__init__(
                what, where=only.where, why=f"{key}{only.message} [{only.rule}]", hint=hint or None
            )
        else:
            super().__init__(
                what, why="\n".join(line for found in findings for line in refusal_lines(found, refusing))
            )
        self.findings = tuple(findings)


def refusal_lines(found: Finding, refusing: Sequence[Finding]) -> list[str]:
    """Return the lines of a finding: marked if it is an error that is not among those that refuse the recipe."""
    beside = found.severity is Severity.ERROR and found not in refusing
    first, *others = found.lines()
    return [f"not for the rehearsal: {first}" if beside else first, *others]
