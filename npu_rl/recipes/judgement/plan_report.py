"""A plan as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from npu_rl.common.yaml_documents.problems import dotted
from npu_rl.recipes.judgement.judgement import Judgement
from npu_rl.recipes.memory.memory_parts import gb
from npu_rl.recipes.plan.layout_drawing import draw_layout
from npu_rl.recipes.plan.memory_report import (
    checkpoints_text,
    host_text,
    memory_json,
    memory_text,
    phases_text,
)
from npu_rl.recipes.plan.phase_times import first_limits
from npu_rl.recipes.plan.plan import Plan

_EVERY = "trainer.save_freq"
_UNCOUNTED = "the trainer's keys are its own"


def plan_text(judgement: Judgement, speed: float | None, everything: bool = False) -> str:
    """Return a plan as text: its answer, the phases and the layout; then findings.

    Args:
        speed: Bytes a second of the storage; None leaves out the loading time.
        everything: Whether to print memory by part, disk, tokens, assumptions and rules, too.
    """
    plan, recipe = judgement.plan, judgement.recipe
    world = f"{recipe.cluster.world} {'die' if recipe.cluster.world == 1 else 'dies'}"
    lines = [
        answer(judgement),
        *wrap(f"{recipe.name}: {recipe.title}", 80, subsequent_indent="  ", break_long_words=False),
        f"{recipe.device}, {recipe.cluster.nodes} x {recipe.cluster.dies} = {world}",
        "",
    ]
    if plan is None:
        lines += _uncounted_lines(judgement)
    else:
        lines += _plan_lines(plan, speed, everything)
    lines.append("")
    lines += [line for found in judgement.findings for line in found.lines()]
    lines += judgement.absent_lines
    if judgement.errors:
        lines.append(verdict(judgement))
    return "\n".join(lines).rstrip() + "\n"


def answer(judgement: Judgement) -> str:
    """Return one line: whether the fullest phase fits, and by how much; the verdict where memory is not counted."""
    plan = judgement.plan
    memory = plan.memory if plan is not None and not plan.facts.cpu else None
    if plan is None or memory is None or not memory.phases:
        return verdict(judgement)
    fullest = max(memory.phases, key=lambda phase: phase.total)
    where = f"({fullest.name.label}, stage {fullest.stage})"
    figures = f"{fullest.total / 1e9:.1f} of {gb(memory.die)} on a die {where}"
    if fullest.total <= memory.die:
        fits = f"fits: at most {figures}, {gb(memory.die - fullest.total)} to spare"
        return f"{verdict(judgement)}; memory {fits}" if judgement.errors else fits
    over = f"{figures}, {gb(fullest.total - memory.die)} too much"
    broken = next((rule for rule in plan.rules if rule.id == fullest.name.rule), None)
    if broken is None:
        return f"fits unless most sequences have their full length: {over} then"
    return f"does not fit{', by an estimate that no measured run covers' if broken.advice else ''}: {over}"


def _plan_lines(plan: Plan, speed: float | None, everything: bool) -> Iterator[str]:
    if plan.memory is not None:
        yield from phases_text(plan.memory)
        yield ""
    if plan.fits:
        yield "Layout"
        yield from _indented(draw_layout(plan.facts, plan.memory))
    if everything and plan.memory is not None:
        yield from ("", *memory_text(plan.memory))
    if plan.memory is not None and (everything or plan.machine.host is not None):
        yield from host_text(plan.memory, plan.machine.host)
    yield ""
    yield from _checkpoint_lines(plan)
    if everything or speed is not None:
        yield from _loading_lines(plan, speed)
    if everything:
        yield from _disk_and_token_lines(plan)
    yield from _rule_lines(plan, everything)


def plan_json(judgement: Judgement, speed: float | None) -> dict[str, Any]:
    """Return the plan as JSON without its findings. Sizes are in bytes."""
    plan, machine = judgement.plan, judgement.machine
    judged: dict[str, Any] = {
        "ok": judgement.ok,
        "answer": answer(judgement),
        "recipe": judgement.recipe.name,
        "dies": judgement.recipe.cluster.world,
        "die_memory": machine.die,
        "host_memory": machine.host,
        "free_disk": machine.disk,
    }
    if plan is None:
        nothing = dict.fromkeys(("memory", "disk", "checkpoints", "loading", "tokens", "first_limits"))
        return {
            **judged,
            "rules": {"held": [], "skipped": {}},
            "layout": [],
            **nothing,
            "uncounted": _UNCOUNTED,
        }
    memory, loading = plan.memory, plan.loading
    return {
        **judged,
        "rules": {
            "held": plan.held,
            "skipped": {rule.id: rule.skipped for rule in plan.rules if rule.skipped},
        },
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


def _checkpoint_lines(plan: Plan) -> Iterator[str]:
    if plan.checkpoints is not None:
        yield checkpoints_text(plan.checkpoints)
    elif plan.disk is not None and (every := plan.facts.whole(_EVERY)) is not None:
        key = dotted(plan.facts.given[_EVERY].path) if _EVERY in plan.facts.given else _EVERY
        yield f"Checkpoints: none is saved ({key} is {every}), so a crash loses the run"


def _loading_lines(plan: Plan, speed: float | None) -> Iterator[str]:
    loading = plan.loading
    if loading is None:
        return
    yield f"Loading reads {gb(loading.once)} (each tensor once) to {gb(loading.by_die)} (each die its own)"
    least, most = loading.seconds(speed or 1.0)
    took = (
        f"{_duration(least)} to {_duration(most)} at {speed / 1e9:g} GB/s"
        if speed
        else "for the time, give --storage-gbs"
    )
    yield f"  from storage: {took}"


def _disk_and_token_lines(plan: Plan) -> Iterator[str]:
    disk, tokens = plan.disk, plan.tokens
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


def _rule_lines(plan: Plan, everything: bool) -> Iterator[str]:
    """Yield the number of rules that hold and of broken ones that don't apply; with `everything`, each."""
    skipped = [rule for rule in plan.rules if rule.skipped]
    more = "" if everything else "; --all prints them, memory by part, disk, tokens and assumptions"
    yield f"Rules: {len(plan.held)} hold, {len(skipped)} don't apply here{more}"
    if everything:
        yield from wrap(
            ", ".join(plan.held), 80, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        )
        yield from (f"  {rule.id}: does not apply, {rule.skipped}" for rule in skipped)
