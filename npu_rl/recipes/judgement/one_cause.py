"""One finding for each changed value of a recipe, however many rules of the plan it breaks.

What follows from a value is tried, not assumed: the plan is made again with the value put back, and what it then
no longer reports followed from that value. A second cause stays, since it is still reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import KeyPath, dotted
from npu_rl.recipes.judgement.recipe_changes import RecipeChange, recipe_changes
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe

Replan = Callable[[LoadedRecipe], Iterable[Finding]]


@dataclass(frozen=True)
class _Cause:
    """A changed value, and the plan's findings that are gone, or are mere advice, with the value put back."""

    change: RecipeChange
    mended: tuple[Finding, ...]


def merge_by_cause(
    loaded: LoadedRecipe,
    found: Sequence[Finding],
    known: Iterable[Finding],
    excepted: Collection[str],
    replan: Replan,
) -> list[Finding]:
    """Return the plan's findings, with those of one changed value in one.

    Args:
        found: Findings of the plan.
        known: Findings on keys and values; where one refuses the changed value, the plan's add nothing.
        excepted: Rules that the recipe overrules, which are not merged into others.
        replan: Returns the plan's findings on a recipe.
    """
    left = list(found)
    refused = {one.path for one in known if one.severity is Severity.ERROR}
    if not any(_counts(one, excepted) and one.severity is Severity.ERROR for one in found):
        return left
    if sum(_counts(one, excepted) for one in found) < 2 and not refused:
        return left
    causes = _causes(loaded, found, replan)
    while causes:
        groups = [[one for one in left if _counts(one, excepted) and one in cause.mended] for cause in causes]
        index = max(range(len(causes)), key=lambda number: len(groups[number]))
        cause, group = causes.pop(index), groups[index]
        known_already = cause.change.path in refused
        if not any(one.severity is Severity.ERROR for one in group) or len(group) + known_already < 2:
            continue
        place = left.index(group[0])
        left = [one for one in left if one not in group]
        if not known_already:
            left.insert(place, _merged(loaded, cause.change, group))
    return left


def _counts(found: Finding, excepted: Collection[str]) -> bool:
    return found.severity is not Severity.NOTE and found.rule not in excepted


def _causes(loaded: LoadedRecipe, found: Sequence[Finding], replan: Replan) -> list[_Cause]:
    """Return the changed values that break rules, and whose base value breaks no others."""
    broken = {one.rule for one in replan(loaded)}  # with those that `found` leaves out as consequences
    causes = []
    for change in recipe_changes(loaded):
        after = list(replan(change.restored))
        errors = {one.rule for one in after if one.severity is Severity.ERROR}
        if not errors <= broken:
            continue
        rules = {one.rule for one in after}
        still = {Severity.ERROR: errors}
        mended = tuple(one for one in found if one.rule not in still.get(one.severity, rules))
        causes.append(_Cause(change, mended))
    return causes


def _merged(loaded: LoadedRecipe, change: RecipeChange, group: Sequence[Finding]) -> Finding:
    errors = [one for one in group if one.severity is Severity.ERROR]
    own = [one for one in errors if one.path == change.path]
    first = (own or errors)[0]
    others = [one for one in group if one is not first]
    message = f"{first.message}; {dotted(change.path)} also breaks {_listed([one.rule for one in others])}"
    fix = change.fix
    fixes = dict.fromkeys(one.fix for one in (first, *others) if one.fix)
    if not own and fixes:
        fix = f"{fix}; or keep it and {'; '.join(fixes)}"
    return replace(
        first,
        path=change.path,
        trainer_key=_trainer_key(loaded, change.path),
        message=message,
        fix=fix,
        where=loaded.where(*change.path),
    )


def _trainer_key(loaded: LoadedRecipe, path: KeyPath) -> str:
    return next((one.key for one in loaded.settings.values() if one.path == path), "")


def _listed(rules: Sequence[str]) -> str:
    return rules[0] if len(rules) == 1 else f"{', '.join(rules[:-1])} and {rules[-1]}"
