"""Exceptions to rules by id, with a reason: `plan: {except: {ID: reason}}`.

Only findings that are not certain can be overruled: estimates, published practice, code that something replaces at run
time. The reason is printed wherever the recipe is judged, and recorded with the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import KeyPath
from npu_rl.common.yaml_documents.suggest import did_you_mean
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe


@dataclass(frozen=True)
class Overruling:
    """The effect of a recipe's exceptions.

    Attributes:
        overruled: Findings that no longer count.
        findings: A note on each exception, with or without effect, and an error on one to a certain rule.
        reasons: Reason by rule id, for exceptions with an effect.
    """

    overruled: frozenset[Finding]
    findings: tuple[Finding, ...]
    reasons: Mapping[str, str]

    def remaining(self, found: Sequence[Finding]) -> tuple[Finding, ...]:
        """Return the findings that aren't overruled by an exception."""
        return tuple(one for one in found if one not in self.overruled)


def overrule(loaded: LoadedRecipe, found: Sequence[Finding]) -> Overruling:
    """Apply the recipe's exceptions to the findings."""
    overruled: set[Finding] = set()
    findings: list[Finding] = []
    reasons: dict[str, str] = {}
    for rule, reason in loaded.recipe.plan.except_.items():
        path: KeyPath = ("plan", "except", rule)
        remove, severity = f"remove plan.except.{rule}", Severity.NOTE
        mine = [one for one in found if one.rule == rule and one.severity is not Severity.NOTE]
        if any(one.certain for one in mine):
            name, severity = "exception-to-a-certain-rule", Severity.ERROR
            message = f"{rule} can't be overruled: such a run fails, or does not do what the recipe sets"
        elif mine:
            overruled.update(mine)
            reasons[rule] = reason
            name, remove = "overruled", ""
            message = f"overruled: {rule}: {reason} (the finding: {'; '.join(one.message for one in mine)})"
        else:
            name = "exception-without-effect"
            near = did_you_mean(rule, sorted({one.rule for one in found}))
            message = f"no finding has the id {rule}{near}, so there is nothing to overrule"
        findings.append(loaded.finding(name, severity, path, message, remove))
    return Overruling(frozenset(overruled), tuple(findings), reasons)
