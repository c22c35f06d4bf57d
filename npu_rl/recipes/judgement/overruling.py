"""Exceptions to rules by id, with a reason: `plan: {except: {ID: reason}}`.

Only findings that are not certain can be overruled: estimates, published practice, code that something replaces at run
time. The reason is printed wherever the recipe is judged, and recorded with the run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
        findings: A note on each valid exception, with or without effect, and an error on each invalid one.
        reasons: Reason by rule id, for exceptions with an effect.
    """

    overruled: frozenset[Finding]
    findings: tuple[Finding, ...]
    reasons: Mapping[str, str]

    def remaining(self, found: Sequence[Finding]) -> tuple[Finding, ...]:
        """Return the findings that aren't overruled by an exception."""
        return tuple(one for one in found if one not in self.overruled)


def overrule(loaded: LoadedRecipe, found: Sequence[Finding], known: Collection[str]) -> Overruling:
    """Apply the recipe's exceptions to the findings.

    Args:
        known: Ids of all rules, including those that hold.
    """
    overruled: set[Finding] = set()
    findings: list[Finding] = []
    reasons: dict[str, str] = {}
    for rule, reason in loaded.recipe.plan.except_.items():
        mine = [one for one in found if one.rule == rule and one.severity is not Severity.NOTE]
        if mine and not any(one.certain for one in mine):
            overruled.update(mine)
            reasons[rule] = reason
        findings.append(_exception_finding(loaded, rule, reason, mine, known))
    return Overruling(frozenset(overruled), tuple(findings), reasons)


def _exception_finding(
    loaded: LoadedRecipe, rule: str, reason: str, mine: Sequence[Finding], known: Collection[str]
) -> Finding:
    path: KeyPath = ("plan", "except", rule)
    remove = f"remove plan.except.{rule}"
    if any(one.certain for one in mine):
        message = f"{rule} can't be overruled: such a run fails, or does not do what the recipe sets"
        return loaded.finding("exception-to-a-certain-rule", Severity.ERROR, path, message, remove)
    if mine:
        message = f"overruled: {rule}: {reason} (the finding: {'; '.join(one.message for one in mine)})"
        return loaded.finding("overruled", Severity.NOTE, path, message)
    if rule in known:
        message = f"{rule} holds or doesn't apply, so there is nothing to overrule"
        return loaded.finding("exception-without-effect", Severity.NOTE, path, message, remove)
    message = f"unknown rule {rule!r}{did_you_mean(rule, sorted(known))}"
    fix = "name a rule by its id, which is in brackets behind the finding's message"
    return loaded.finding("unknown-rule", Severity.ERROR, path, message, fix)
