"""Rules that a person overrules by id, with a reason: `plan: {except: {ID: reason}}`.

Only what is not certain can be overruled: an estimate, a published practice, a part that something replaces at run
time. The reason is told wherever the recipe is judged, and recorded with the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from npu_rl.config.finding import Finding, Severity
from npu_rl.config.problems import KeyPath
from npu_rl.config.suggest import did_you_mean
from npu_rl.recipes.load_recipe import LoadedRecipe


@dataclass(frozen=True)
class Overruling:
    """What the exceptions of a recipe did.

    Attributes:
        removed: The findings that are overruled.
        told: A note on each exception that has an effect or none, an error on each that can't be.
        reasons: Rule id -> reason, of those that have an effect.
    """

    removed: frozenset[Finding]
    told: tuple[Finding, ...]
    reasons: Mapping[str, str]

    def left(self, found: Sequence[Finding]) -> tuple[Finding, ...]:
        """The findings that no exception removes."""
        return tuple(one for one in found if one not in self.removed)


def overrule(loaded: LoadedRecipe, found: Sequence[Finding], known: Collection[str]) -> Overruling:
    """Hold the recipe's exceptions against what was found.

    Args:
        loaded: The recipe.
        found: Everything that was found.
        known: The ids of all rules, those that hold included.
    """
    removed: set[Finding] = set()
    told: list[Finding] = []
    reasons: dict[str, str] = {}
    for rule, reason in loaded.recipe.plan.except_.items():
        mine = [one for one in found if one.rule == rule and one.severity is not Severity.NOTE]
        if mine and not any(one.certain for one in mine):
            removed.update(mine)
            reasons[rule] = reason
        told += _told(loaded, rule, reason, mine, known)
    return Overruling(frozenset(removed), tuple(told), reasons)


def _told(
    loaded: LoadedRecipe, rule: str, reason: str, mine: Sequence[Finding], known: Collection[str]
) -> Iterator[Finding]:
    path: KeyPath = ("plan", "except", rule)
    where, remove = loaded.where(*path), f"remove plan.except.{rule}"
    if any(one.certain for one in mine):
        message = f"{rule} can't be overruled: such a run fails, or does not do what the recipe sets"
        yield Finding("exception-to-a-certain-rule", Severity.ERROR, path, "", message, remove, where)
    elif mine:
        message = f"overruled: {rule}: {reason} (the finding: {'; '.join(one.message for one in mine)})"
        yield Finding("overruled", Severity.NOTE, path, "", message, "", where)
    elif rule in known:
        message = f"{rule} holds or doesn't apply, so there is nothing to overrule"
        yield Finding("exception-without-effect", Severity.NOTE, path, "", message, remove, where)
    else:
        message = f"there is no rule {rule!r}{did_you_mean(rule, sorted(known))}"
        fix = "name a rule by its id, which stands in brackets behind what it finds"
        yield Finding("unknown-rule", Severity.ERROR, path, "", message, fix, where)
