"""The rules of a plan as text: folded to their numbers, or each with its figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npu_rl.plan.rules.rule import Rule


def rules_text(rules: Sequence[Rule], everything: bool) -> Iterator[str]:
    """Lines on the rules that hold and on those that step aside. everything: list them, with figures and reasons."""
    skipped = [rule for rule in rules if rule.skipped]
    held = [rule for rule in rules if rule.ok and not rule.skipped]
    yield f"{_count(held, 'holds', 'hold')}{':' if everything and held else '' if everything else '; --all lists them'}"
    if everything:
        yield from (f"  {rule.id}: {rule.figures}" for rule in held)
    if skipped:
        count = _count(skipped, "does not apply here", "don't apply here")
        yield f"{count}{':' if everything else '; --all lists them with why'}"
    if everything:
        yield from (f"  {rule.id}: {rule.skipped}" for rule in skipped)


def _count(rules: Sequence[Rule], one: str, more: str) -> str:
    return f"1 rule {one}" if len(rules) == 1 else f"{len(rules)} rules {more}"
