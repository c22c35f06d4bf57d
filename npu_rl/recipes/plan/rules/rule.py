"""Rules of a plan: each is one function, with the upstream code it rests on and whether that makes it certain.

A function yields what a recipe breaks and nothing where it holds; its name is the rule's id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import NamedTuple

from npu_rl.recipes.sizing.plan_inputs import PlanInputs
from npu_rl.recipes.trainer_code.citations import CitedCode, Place


@dataclass(frozen=True)
class Rule:
    """A rule that a recipe breaks.

    Attributes:
        id: Stable, in kebab-case; `plan: {except: ...}`, tests and programs refer to it.
        figures: The values that break it, as a sentence, with the code that requires it (file:line@commit).
        fix: What to write in the recipe.
        keys: The keys it is about, the likeliest to be changed first: the trainer's, or the recipe's if it has none.
        advice: Whether a run that breaks it works, but not as intended.
        certain: Whether a run that breaks it crashes or computes something wrong, so that it can't be overruled.
        skipped: Why the rule does not apply to this tree, so that it does not count.
    """

    id: str
    figures: str
    fix: str
    keys: tuple[str, ...]
    advice: bool = False
    certain: bool = True
    skipped: str = ""

    @property
    def refuses(self) -> bool:
        """Return whether the rule makes `train` refuse the recipe."""
        return not (self.advice or self.skipped)


Broken = Iterator[Rule]
"""What a rule's function yields: usually nothing, or one Rule without its id and its code."""


class RuleDefinition(NamedTuple):
    """A rule as it is registered.

    Attributes:
        judge: Yields what a recipe breaks.
        places: Upstream places that all have to exist, each in one of its alternatives; it steps aside in a tree
            without. A rule without places is arithmetic, valid for any tree.
        certain: Whether that code raises, asserts, hangs or computes something else if the rule is broken; estimates,
            published practice and what the code does not show can be overruled in the recipe.
        module: The module that defines it.
    """

    judge: Callable[[PlanInputs], Broken]
    places: tuple[tuple[Place, ...], ...]
    certain: bool
    module: str


RULES: dict[str, RuleDefinition] = {}
"""Every rule of the modules that are imported, by its id."""


def rule(
    *places: Place | tuple[Place, ...], certain: bool = True, identity: str = ""
) -> Callable[[Callable[[PlanInputs], Broken]], Callable[[PlanInputs], Broken]]:
    """Register a function as a rule; a tuple of places is one place with its alternatives."""

    def register(judge: Callable[[PlanInputs], Broken]) -> Callable[[PlanInputs], Broken]:
        alternatives = tuple((one,) if isinstance(one, Place) else one for one in places)
        name = identity or judge.__name__.strip("_").replace("_", "-")
        RULES[name] = RuleDefinition(judge, alternatives, certain, judge.__module__)
        return judge

    return register


def broken(figures: str, fix: str, *keys: str, advice: bool = False, certain: bool = True) -> Rule:
    """Return what a rule's function yields."""
    return Rule("", figures, fix, keys, advice, certain)


def judge_rules(facts: PlanInputs, modules: Iterable[ModuleType]) -> Iterator[Rule]:
    """Yield every rule of the modules that a recipe breaks."""
    for module in modules:
        for identity, definition in RULES.items():
            if definition.module == module.__name__:
                for found in definition.judge(facts):
                    yield cited(replace(found, id=identity), definition, facts.upstream)


def cited(found: Rule, definition: RuleDefinition, upstream: CitedCode) -> Rule:
    """Return a rule with its upstream code; one whose code the tree lacks is marked as skipped."""
    statuses = [upstream.find(*alternatives) for alternatives in definition.places]
    skipped = next((status.why for status in statuses if not status.holds), "")
    where = ", ".join(status.where for status in statuses if status.where)
    figures = f"{found.figures} ({where})" if where and not skipped else found.figures
    certain = found.certain and definition.certain and not found.advice
    return replace(found, figures=figures, certain=certain, skipped=skipped)


def without(facts: PlanInputs, slug: str, fix: str, *keys: str) -> tuple[str, str, tuple[str, ...]]:
    """Return the state of an adaptation that is not on, with the fix and its keys: to switch it on, or else `fix`."""
    if slug in facts.off:
        return f"adaptation {slug} off", f"set adaptations.{slug} to true", (f"adaptations.{slug}",)
    return f"adaptation {slug} not in this tree", fix, keys
