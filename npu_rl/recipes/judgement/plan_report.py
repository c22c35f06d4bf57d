"""A plan as text, and its result for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import wrap

from npu_rl.common.printable import counted
from npu_rl.common.yaml_documents.finding import Finding
from npu_rl.common.yaml_documents.problems import dotted
from npu_rl.recipes.judgement.judgement import Judgement
from npu_rl.recipes.memory.memory_by_phase import Memory
from npu_rl.recipes.memory.memory_parts import gb
from npu_rl.recipes.plan.disk_and_tokens import Disk, Loading, Tokens
from npu_rl.recipes.plan.layout_drawing import draw_layout
from npu_rl.recipes.plan.memory_report import (
    checkpoints_text,
    host_text,
    memory_text,
    phases_text,
)
from npu_rl.recipes.plan.phase_times import first_step_limit
from npu_rl.recipes.plan.plan import Plan
from npu_rl.recipes.plan.rules.checkpoint_rules import Checkpoints
from npu_rl.recipes.sizing.machine import Machine

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
    if plan.loading is not None and (everything or speed is not None):
        yield from _loading_lines(plan.loading, speed)
    if everything:
        yield from _disk_and_token_lines(plan)
    yield from _rule_lines(plan, everything)


@dataclass(frozen=True)
class PlanReport:
    """The result of `plan`. Sizes are in bytes; what the trainer's own keys leave uncounted is empty or None.

    Attributes:
        answer: The first line of the text.
        held: Ids of the rules that hold or have nothing to judge.
        skipped: Why a rule that this recipe would break does not apply here, by id.
        layout: The drawing, by line.
        loading_seconds: The shortest and the longest time to load the weights, with --storage-gbs.
        first_step_limit: Seconds after which the first step raises the hang alarm.
    """

    ok: bool
    answer: str
    recipe: str
    dies: int
    machine: Machine
    held: Sequence[str] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    layout: Sequence[str] = ()
    memory: Memory | None = None
    disk: Disk | None = None
    checkpoints: Checkpoints | None = None
    loading: Loading | None = None
    loading_seconds: tuple[float, float] | None = None
    tokens: Tokens | None = None
    first_step_limit: float | None = None
    findings: Sequence[Finding] = ()


def plan_report(judgement: Judgement, speed: float | None) -> PlanReport:
    """Return the plan for programs. speed: Bytes a second of the storage, if it is known."""
    plan, recipe = judgement.plan, judgement.recipe
    judged = PlanReport(
        judgement.ok,
        answer(judgement),
        recipe.name,
        recipe.cluster.world,
        judgement.machine,
        findings=judgement.findings,
    )
    if plan is None:
        return judged
    return replace(
        judged,
        held=plan.held,
        skipped={rule.id: rule.skipped for rule in plan.rules if rule.skipped},
        layout=draw_layout(plan.facts, plan.memory) if plan.fits else (),
        memory=plan.memory,
        disk=plan.disk,
        checkpoints=plan.checkpoints,
        loading=plan.loading,
        loading_seconds=plan.loading.seconds(speed) if plan.loading and speed else None,
        tokens=plan.tokens,
        first_step_limit=first_step_limit(plan.phase_times),
    )


def _uncounted_lines(judgement: Judgement) -> Iterator[str]:
    """Yield what is known of a run whose trainer has its own keys."""
    yield f"Layout, memory, disk and tokens: not counted, {_UNCOUNTED}."
    every = judgement.recipe.checkpoint.every
    saved = "as set in the trainer's own configuration" if every is None else f"every {every} steps"
    free = judgement.machine.disk
    yield f"Checkpoints: {saved}" + ("." if free is None else f"; {gb(free)} of disk are free.")


def _checkpoint_lines(plan: Plan) -> Iterator[str]:
    if plan.checkpoints is not None:
        yield checkpoints_text(plan.checkpoints)
    elif plan.disk is not None and (every := plan.facts.whole(_EVERY)) is not None:
        key = dotted(plan.facts.path(_EVERY)) or _EVERY
        yield f"Checkpoints: none is saved ({key} is {every}), so a crash loses the run"


def _loading_lines(loading: Loading, speed: float | None) -> Iterator[str]:
    yield f"Loading reads {gb(loading.once)} (each tensor once) to {gb(loading.by_die)} (each die its own)"
    least, most = map(_duration, loading.seconds(speed or 1.0))
    given = f"{least} to {most} at {(speed or 1.0) / 1e9:g} GB/s"
    yield f"  from storage: {given if speed else 'for the time, give --storage-gbs'}"


def _disk_and_token_lines(plan: Plan) -> Iterator[str]:
    disk, tokens = plan.disk, plan.tokens
    if disk is not None:
        yield "Disk"
        named = {
            "weights as published, FP8": disk.fp8,
            "Hugging Face folder, bf16": disk.bf16,
            "Megatron dist checkpoint, weights": disk.dist,
            f"checkpoint to resume from{'' if plan.checkpoints else ', if saved'}": disk.resume,
        }
        yield from (f"  {name:<40} {gb(size):>9}" for name, size in named.items() if size is not None)
    if tokens is not None:
        engine = f", {tokens.per_engine:,} an engine" if tokens.per_engine else ""
        yield f"Tokens of a step: {tokens.longest:,} at most ({tokens.sequences:,} sequences{engine})"
    if plan.phase_times:
        yield f"Hang alarm of the first step: after {_duration(first_step_limit(plan.phase_times))}"


def verdict(judgement: Judgement) -> str:
    """Return one line: the recipe fits, or the number of errors and their rules."""
    name, errors = judgement.recipe.name, judgement.errors
    if not errors:
        return f"{name} fits." if judgement.plan else f"{name}: no error; whether it fits is not counted."
    rules = ", ".join(dict.fromkeys(found.rule for found in errors))
    return f"{name} can't be run as it is: {counted(len(errors), 'error')} ({rules})"


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
