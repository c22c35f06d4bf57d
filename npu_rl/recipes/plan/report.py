"""A plan as text for people and as plain data for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from npu_rl.recipes.judge import Judgement
from npu_rl.recipes.plan.drawing import drawing
from npu_rl.recipes.plan.memory import GENERATE, GRADIENT, HANDOVER, STATES, UPDATE, WEIGHT, Memory
from npu_rl.recipes.plan.memory_rules import gb
from npu_rl.recipes.plan.plan import Plan
from npu_rl.recipes.plan.rule import Rule


def plan_text(judgement: Judgement, speed: float | None) -> str:
    """The whole plan. speed: of the storage, in bytes a second."""
    plan = judgement.plan
    recipe = plan.facts.recipe
    world = f"{recipe.cluster.world} {'die' if recipe.cluster.world == 1 else 'dies'}"
    lines = [
        f"{recipe.name}: {recipe.title}",
        f"{recipe.device}, {recipe.cluster.nodes} x {recipe.cluster.dies} = {world}",
    ]
    if plan.fits:
        lines += ["", "Layout", *_indented(drawing(plan.facts, plan.memory))]
    if plan.memory is not None:
        lines += ["", *_memory(plan.memory)]
    held = [rule for rule in plan.rules if rule.ok]
    lines += ["", *_amounts(plan, speed), "", "Rules that hold", *map(_rule, held), ""]
    lines += [found.line() for found in judgement.findings]
    lines.append(verdict(judgement))
    return "\n".join(lines) + "\n"


def plan_json(judgement: Judgement, speed: float | None) -> dict[str, Any]:
    """The same as plain data, bytes whole, without the findings."""
    plan = judgement.plan
    memory, loading = plan.memory, plan.loading
    return {
        "ok": judgement.ok,
        "recipe": plan.facts.recipe.name,
        "dies": plan.facts.recipe.cluster.world,
        "die_memory": plan.machine.die,
        "host_memory": plan.machine.host,
        "rules": [_rule_json(rule) for rule in plan.rules],
        "layout": drawing(plan.facts, memory) if plan.fits else [],
        "memory": None if memory is None else _memory_json(memory),
        "disk": None if plan.disk is None else asdict(plan.disk),
        "loading": None
        if loading is None
        else {**asdict(loading), "seconds": None if speed is None else list(loading.seconds(speed))},
        "tokens": None if plan.tokens is None else asdict(plan.tokens),
    }


def _rule_json(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "ok": rule.ok,
        "refuses": rule.refuses,
        "figures": rule.figures,
        "fix": "" if rule.ok else rule.fix,
        "skipped": rule.skipped,
        "keys": list(rule.keys),
    }


def _memory_json(memory: Memory) -> dict[str, Any]:
    return {
        "stages": [
            {
                "layers": [one.layers.start, one.layers.stop],
                "parameters": dict(one.counts),
                "weights": one.weights,
                "gradients": one.gradients,
                "optimizer": one.states,
                "on_host": dict(one.on_host),
            }
            for one in memory.stages
        ],
        "rollout": {"parameters": dict(memory.rollout_counts), "bytes": dict(memory.engine)},
        "phases": [
            {"name": phase.name, "stage": phase.stage, "parts": dict(phase.parts), "total": phase.total}
            for phase in memory.phases
        ],
        "host": dict(memory.host),
        "assumed": list(memory.assumed),
    }


def _memory(memory: Memory) -> Iterator[str]:
    yield f"Memory of a die in training (weights {WEIGHT}, gradients {GRADIENT}, optimizer {STATES} bytes a parameter)"
    yield "  stage  parameters  weights   gradients  optimizer  of it on the host"
    for number, one in enumerate(memory.stages):
        total = sum(one.counts.values())
        yield (
            f"  {number:>5}  {total / 1e6:>8.1f} M  {gb(one.weights):<8}  {gb(one.gradients):<9}  {gb(one.states):<9}  "
            f"{gb(sum(one.on_host.values()))}"
        )
    yield "  parameters of a die by component, in millions:"
    names = list(dict.fromkeys(name for one in memory.stages for name in one.counts))
    yield f"  stage  {'  '.join(f'{name:>{max(7, len(name))}}' for name in names)}"
    for number, one in enumerate(memory.stages):
        cells = (f"{one.counts[name] / 1e6:>{max(7, len(name))}.1f}" for name in names)
        yield f"  {number:>5}  {'  '.join(cells)}"
    if memory.engine:
        yield "Memory of a die in the rollout"
        counts = ", ".join(f"{name} {count / 1e6:.1f} M" for name, count in memory.rollout_counts.items())
        yield from _wrapped(f"{sum(memory.rollout_counts.values()) / 1e9:.2f} B parameters: {counts}")
        for name, size in memory.engine.items():
            yield f"  {name:<40} {gb(size):>9}"
    for name in (UPDATE, HANDOVER, GENERATE):
        phase = memory.worst(name)
        if phase is not None:
            yield f"At once on a die, {name} (stage {phase.stage} needs most): {gb(phase.total)}"
            for part, size in phase.parts.items():
                yield f"  {part:<40} {gb(size):>9}"
    yield f"Memory of a host, offloaded and swapped: {gb(sum(memory.host.values()))} a node"
    for part, size in memory.host.items():
        yield f"  {part:<40} {gb(size):>9}"
    yield "Assumed"
    for text in memory.assumed:
        yield from _wrapped(f"- {text}")


def _amounts(plan: Plan, speed: float | None) -> Iterator[str]:
    disk, loading, tokens = plan.disk, plan.loading, plan.tokens
    if disk is not None:
        yield "Disk"
        named = (
            ("weights as published, FP8", disk.fp8),
            ("Hugging Face folder, bf16", disk.bf16),
            ("Megatron dist checkpoint, weights", disk.dist),
            ("checkpoint to resume from", disk.resume),
        )
        for name, size in named:
            if size is not None:
                yield f"  {name:<40} {gb(size):>9}"
    if loading is not None:
        at_rate = ""
        if speed is not None:
            least, most = loading.seconds(speed)
            at_rate = f": {_time(least)} to {_time(most)} at {speed / 1e9:g} GB/s"
        yield (
            f"Loading reads {gb(loading.once)} (each tensor once a role) to {gb(loading.by_die)} (each die its own)"
        )
        yield f"  from storage{at_rate or ': say --storage-gbs for the time'}"
    if tokens is not None:
        engine = f", {tokens.per_engine:,} an engine" if tokens.per_engine else ""
        yield f"Tokens of a step: {tokens.longest:,} at most ({tokens.sequences:,} sequences{engine})"


def _rule(rule: Rule) -> str:
    return f"  {rule.id}: {rule.figures}"


def verdict(judgement: Judgement) -> str:
    """One line: whether `train` would begin."""
    name, count = judgement.plan.facts.recipe.name, len(judgement.errors)
    if not count:
        return f"{name} fits."
    rules = dict.fromkeys(found.rule for found in judgement.errors)
    return (
        f"{name} can't be run as it is: {'1 error' if count == 1 else f'{count} errors'} ({', '.join(rules)})"
    )


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]


def _wrapped(text: str) -> Iterator[str]:
    from textwrap import wrap

    yield from wrap(text, 98, initial_indent="  ", subsequent_indent="    ", break_long_words=False)


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.2g} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
