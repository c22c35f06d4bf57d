"""A plan as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from npu_rl.common.yaml_documents.problems import dotted
from npu_rl.recipes.judgement.judgement import Judgement
from npu_rl.recipes.memory.memory_parts import gb
from npu_rl.recipes.plan.layout_drawing import draw_layout
from npu_rl.recipes.plan.memory_report import checkpoints_text, memory_json, memory_text
from npu_rl.recipes.plan.phase_times import first_limits
from npu_rl.recipes.plan.plan import Plan
from npu_rl.recipes.plan.rules.rule import Rule

_EVERY = "trainer.save_freq"
_UNCOUNTED = "the trainer's keys are its own"


def plan_text(judgement: Judgement, speed: float | None, every_rule: bool = False) -> str:
    """Return the whole plan as text.

    Args:
        speed: Bytes a second of the storage; None leaves out the loading time.
        every_rule: Whether to list the rules that hold, too.
    """
    plan = judgement.plan
    recipe = judgement.recipe
    world = f"{recipe.cluster.world} {'die' if recipe.cluster.world == 1 else 'dies'}"
    lines = [
        *wrap(f"{recipe.name}: {recipe.title}", 80, subsequent_indent="  ", break_long_words=False),
        f"{recipe.device}, {recipe.cluster.nodes} x {recipe.cluster.dies} = {world}",
    ]
    if plan is None:
        lines += ["", *_uncounted_lines(judgement), ""]
        lines += [line for found in judgement.findings for line in found.lines()]
        lines += judgement.absent_lines
        return "\n".join([*lines, verdict(judgement)]) + "\n"
    if plan.fits:
        lines += ["", "Layout", *_indented(draw_layout(plan.facts, plan.memory))]
    if plan.memory is not None:
        lines += ["", *memory_text(plan.memory, plan.machine.host)]
    lines += ["", *_disk_and_token_lines(plan, speed), "", *rules_text(plan.rules, every_rule), ""]
    lines += [line for found in judgement.findings for line in found.lines()]
    lines += judgement.absent_lines
    lines.append(verdict(judgement))
    return "\n".join(lines) + "\n"


def plan_json(judgement: Judgement, speed: float | None) -> dict[str, Any]:
    """Return the plan as JSON without its findings. Sizes are in bytes."""
    plan, machine = judgement.plan, judgement.machine
    judged: dict[str, Any] = {
        "ok": judgement.ok,
        "recipe": judgement.recipe.name,
        "dies": judgement.recipe.cluster.world,
        "die_memory": machine.die,
        "host_memory": machine.host,
        "free_disk": machine.disk,
    }
    if plan is None:
        nothing = dict.fromkeys(("memory", "disk", "checkpoints", "loading", "tokens", "first_limits"))
        return {**judged, "rules": [], "layout": [], **nothing, "uncounted": _UNCOUNTED}
    memory, loading = plan.memory, plan.loading
    return {
        **judged,
        "rules": [_rule_json(rule) for rule in plan.rules],
        "layout": draw_layout(plan.facts, memory) if plan.fits else [],
        "memory": None if memory is None else memory_json(memory),
        "disk": None if plan.disk is None else asdict(plan.disk),
        "checkpoints": None if plan.checkpoints is None else asdict(plan.checkpoints),
        "loading": None
        if loading is None
        else {**asdict(loading), "seconds": None if speed is None else list(loading.seconds(speed))},
        "tokens": None if plan.tokens is None else asdict(plan.tokens),
        "first_limits": first_limits(plan.phase_times),
    }


def _uncounted_lines(judgement: Judgement) -> Iterator[str]:
    """Yield the known sizes of a run whose trainer has its own keys."""
    recipe, free = judgement.recipe, judgement.machine.disk
    yield f"Layout, memory, disk and tokens: not counted, {_UNCOUNTED}."
    every = recipe.checkpoint.every
    keys = recipe.trainer.keys
    written = keys is not None and bool(keys.checkpoint.folder)
    saved = "as set in the trainer's own configuration" if every is None else f"every {every} steps"
    if every is not None and every > 0:
        saved = f"{recipe.steps // every} in {recipe.steps} steps, one every {every}"
    where = "the run's folder" if written else "the folder of the trainer's own configuration"
    yield f"Checkpoints: {saved}, in {where}" + (f"; {gb(free)} are free there." if free and written else ".")


def _rule_json(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "ok": rule.ok,
        "refuses": rule.refuses,
        "figures": rule.figures,
        "fix": "" if rule.ok else rule.fix,
        "certain": rule.certain,
        "skipped": rule.skipped,
        "keys": list(rule.keys),
    }


def _disk_and_token_lines(plan: Plan, speed: float | None) -> Iterator[str]:
    disk, loading, tokens = plan.disk, plan.loading, plan.tokens
    if disk is not None:
        yield "Disk"
        named = (
            ("weights as published, FP8", disk.fp8),
            ("Hugging Face folder, bf16", disk.bf16),
            ("Megatron dist checkpoint, weights", disk.dist),
            (f"checkpoint to resume from{'' if plan.checkpoints else ', if saved'}", disk.resume),
        )
        for name, size in named:
            if size is not None:
                yield f"  {name:<40} {gb(size):>9}"
    if plan.checkpoints is not None:
        yield checkpoints_text(plan.checkpoints)
    elif disk is not None and (every := plan.facts.whole(_EVERY)) is not None:
        key = dotted(plan.facts.given[_EVERY].path) if _EVERY in plan.facts.given else _EVERY
        yield f"Checkpoints: none is saved ({key} is {every}), so a crash loses the run"
    if loading is not None:
        at_rate = ""
        if speed is not None:
            least, most = loading.seconds(speed)
            at_rate = f": {_duration(least)} to {_duration(most)} at {speed / 1e9:g} GB/s"
        yield (
            f"Loading reads {gb(loading.once)} (each tensor once) to {gb(loading.by_die)} (each die its own)"
        )
        yield f"  from storage{at_rate or ': for the time, give --storage-gbs'}"
    if tokens is not None:
        engine = f", {tokens.per_engine:,} an engine" if tokens.per_engine else ""
        yield f"Tokens of a step: {tokens.longest:,} at most ({tokens.sequences:,} sequences{engine})"
    if plan.phase_times:
        limits = first_limits(plan.phase_times)
        shown = ", ".join(f"{name} {_duration(seconds)}" for name, seconds in limits.items())
        yield from ("Hang alarm, for the first of a phase (estimate)", f"  {shown}")


def verdict(judgement: Judgement) -> str:
    """Return one line: the recipe fits, or the number of errors and their rules."""
    name, count = judgement.recipe.name, len(judgement.errors)
    if not count and judgement.plan is None:
        return f"{name}: no error; whether it fits is not counted."
    if not count:
        return f"{name} fits."
    rules = dict.fromkeys(found.rule for found in judgement.errors)
    return (
        f"{name} can't be run as it is: {'1 error' if count == 1 else f'{count} errors'} ({', '.join(rules)})"
    )


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.2g} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def rules_text(rules: Sequence[Rule], everything: bool) -> Iterator[str]:
    """Yield the lines on rules that hold and rules that don't apply.

    Args:
        everything: Whether to list each rule, with figures or the reason why it doesn't apply.
    """
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
