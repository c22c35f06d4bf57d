"""Rules of a plan: each is one function with its id, the upstream code it rests on, and whether it is certain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import NamedTuple

from npu_rl.common.yaml_documents.problems import KeyPath
from npu_rl.recipes.sizing.plan_inputs import PlanInputs
from npu_rl.recipes.trainer_code.citations import CitedCode, Place


@dataclass(frozen=True)
class Rule:
    """A rule and its outcome.

    Attributes:
        id: Stable, in kebab-case; `plan: {except: ...}`, tests and programs refer to it.
        ok: Whether it holds.
        figures: The values it was judged by, as a sentence, with the code that requires it (file:line@commit).
        fix: What to write in the recipe if it doesn't hold.
        keys: The trainer's keys it is about, the likeliest to be changed first.
        path: The recipe's key, for a rule that is about none of the trainer's.
        advice: Whether a run that breaks it works, but not as intended.
        certain: Whether a run that breaks it crashes or computes something wrong, so that it can't be overruled.
        skipped: Why the rule does not apply to this tree; `ok` is True then.
    """

    id: str
    ok: bool
    figures: str
    fix: str = ""
    keys: tuple[str, ...] = ()
    path: KeyPath = ()
    advice: bool = False
    certain: bool = True
    skipped: str = ""

    @property
    def refuses(self) -> bool:
        """Return whether the rule makes `train` refuse the recipe."""
        return not self.ok and not self.advice


class Outcome(NamedTuple):
    """What a rule's function found: a `Rule` without its id and its code."""

    ok: bool
    figures: str
    fix: str = ""
    keys: tuple[str, ...] = ()
    path: KeyPath = ()
    advice: bool = False
    certain: bool = True


Outcomes = Iterator[Outcome]
"""Usually one outcome; none if a recipe has nothing that the rule is about."""


class RuleDefinition(NamedTuple):
    """A rule as it is registered.

    Attributes:
        judge: Yields its outcome.
        places: Upstream places that all have to exist, each in one of its alternatives; it steps aside in a tree
            without. A rule without places is arithmetic, valid for any tree.
        certain: Whether that code raises, asserts, hangs or computes something else if the rule is broken; estimates,
            published practice and what the code does not show can be overruled in the recipe.
        module: The module that defines it.
    """

    judge: Callable[[PlanInputs], Outcomes]
    places: tuple[tuple[Place, ...], ...]
    certain: bool
    module: str

    def outcomes(self, identity: str, facts: PlanInputs) -> Iterator[Rule]:
        """Yield the rule of a recipe, with the code it rests on or the reason why it is skipped."""
        for found in self.judge(facts):
            rule = Rule(identity, *found)
            yield cited(rule, self.places, self.certain, facts.upstream)


RULES: dict[str, RuleDefinition] = {}
"""Every rule of the modules that are imported, by its id."""


def rule(
    identity: str, *places: Place | tuple[Place, ...], certain: bool = True, only: tuple[str, ...] = ()
) -> Callable[[Callable[[PlanInputs], Outcomes]], Callable[[PlanInputs], Outcomes]]:
    """Register a function as a rule.

    Args:
        places: The upstream code; a tuple is one place with its alternatives.
        only: Attributes of PlanInputs that have to be true for it, such as `megatron` or `vllm`.
    """

    def register(judge: Callable[[PlanInputs], Outcomes]) -> Callable[[PlanInputs], Outcomes]:
        def judge_some(facts: PlanInputs) -> Outcomes:
            if all(getattr(facts, name) for name in only):
                yield from judge(facts)

        alternatives = tuple((one,) if isinstance(one, Place) else one for one in places)
        RULES[identity] = RuleDefinition(judge_some, alternatives, certain, judge.__module__)
        return judge

    return register


def judge_rules(facts: PlanInputs, modules: Iterable[ModuleType]) -> Iterator[Rule]:
    """Yield every rule of the modules that a recipe has something for."""
    for module in modules:
        for identity, definition in RULES.items():
            if definition.module == module.__name__:
                yield from definition.outcomes(identity, facts)


def cited(found: Rule, places: tuple[tuple[Place, ...], ...], certain: bool, upstream: CitedCode) -> Rule:
    """Return a rule with its upstream code; one whose code the tree lacks is marked as skipped."""
    where: list[str] = []
    for alternatives in places:
        status = upstream.find(*alternatives)
        if not status.holds:
            return replace(found, ok=True, skipped=status.why)
        where += [status.where] if status.where else []
    figures = f"{found.figures} ({', '.join(where)})" if where else found.figures
    return replace(found, figures=figures, certain=found.certain and certain and not found.advice)
