"""`train --rehearse`: run the selected levels and write one report."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from npu_rl.common.disk import write_atomically
from npu_rl.common.python_roots import APEX, INJECTED, NPU, REHEARSAL, VLLM
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_settings import config_location
from npu_rl.recipes.sizing.own_layout import own_layout
from npu_rl.recipes.sizing.parallelism import Parallelism, layout_of
from npu_rl.recipes.sizing.plan_inputs import facts_of
from npu_rl.recipes.trainer_code.compose_config import compose_config
from npu_rl.rehearsal.child_process import TrainingChild
from npu_rl.rehearsal.choose_levels import (
    VLLM_STANDINS,
    choose_levels,
    groups_obstacle,
    has_mindspeed,
)
from npu_rl.rehearsal.level_imports import modules_of_run, rehearse_imports
from npu_rl.rehearsal.level_layout import rehearse_layout
from npu_rl.rehearsal.level_train import rehearse_training
from npu_rl.rehearsal.patch_hooks import patch_uses, read_usage
from npu_rl.rehearsal.rehearsal_report import RehearsalReport
from npu_rl.rehearsal.run_differences.differences import differences
from npu_rl.rehearsal.scale_recipe import scale_recipe
from npu_rl.rehearsal.training_checks.recomputed_steps import is_recomputation
from npu_rl.stack.sources.progress import Notify
from npu_rl.training.host.vllm_environment import vllm_on_cpu, vllm_version
from npu_rl.training.monitor.screen import PlainScreen, clock
from npu_rl.training.record.attempt import dump
from npu_rl.training.record.rehearsal_end import end_recorded
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.run.begin_run import new_record
from npu_rl.training.run.prepare import Prepared, runs_folder
from npu_rl.training.run.recorded_facts import attempt_facts, run_facts
from npu_rl.workspace.verification.verify import verify


def rehearse(prepared: Prepared, level: str, screen: PlainScreen, notify: Notify) -> RehearsalReport:
    """Rehearse one level, "all" or "quick", and write the report to the rehearsal's run folder.

    Raises:
        NpuRlError: If the level can't be rehearsed.
        RunStopped: If the user or the system stops it.
    """
    chosen, code = choose_levels(prepared, level), prepared.paths.code
    wanted = chosen.levels
    for part in chosen.left_out:
        notify(f"not rehearsed: {part.what}: {part.why}")
    if chosen.steps is not None:
        prepared = prepared.with_recipe(prepared.recipe.model_copy(update={"steps": chosen.steps}))
    report = RehearsalReport(
        prepared.recipe.name,
        prepared.lock.tree,
        prepared.lock.commit,
        _backend(prepared),
        prepared.recipe.device,
        left_out=chosen.left_out,
    )
    record = _new_record(prepared, level, has_verdict=True)
    report.unproven = record.unproven
    if prepared.drift:
        prepared.drift.write(record.folder)
    timed = _timed_parts(screen, len(set(wanted) - {"rollout"}) + len(chosen.cases) * ("rollout" in wanted))
    secrets = prepared.secrets(os.environ)
    with record.locked(), end_recorded(record.folder, secrets):
        if "imports" in wanted:
            with timed("imports"):
                child = _child(prepared, record, npu=(code / "mindspeed").is_dir())
                of_run = modules_of_run(code, prepared.recipe, prepared.report)
                report.imports = rehearse_imports(child, of_run, notify)
        if "layout" in wanted:
            with timed("layout"):
                child = _child(prepared, record, npu=has_mindspeed(prepared))
                without_rollout, device = groups_obstacle(prepared), prepared.recipe.device
                report.layout = rehearse_layout(_layout(prepared), child, notify, device, without_rollout)
        if "train" in wanted:
            with timed("train"):
                report.train = rehearse_training(prepared, record, screen)
        if "rollout" in wanted:
            report.rollout = {}
            for case in chosen.cases:
                of_case = _new_record(prepared, f"rollout, {case}", f".{case}")
                with (
                    timed(f"rollout, {case} parallel"),
                    of_case.locked(),
                    end_recorded(of_case.folder, secrets),
                ):
                    report.rollout[case] = rehearse_training(prepared, of_case, screen, case)
        _complete(report, prepared, notify)
        write_atomically(record.folder / "rehearsal.json", dump(report.to_json()).encode())
    return report


def _complete(report: RehearsalReport, prepared: Prepared, notify: Notify) -> None:
    """Add what all parts together show: changes to the tree, and uses of stand-ins and patches."""
    if report.train_parts() and prepared.drift is None:
        again = verify(prepared.paths, notify, deep=True)
        report.changed_files = [f"{drift.kind} {drift.path}" for drift in again.drift]
    hooks, standins = read_usage(*{folder for part in report.train_parts() for folder in part.usage})
    report.standins = {name: number for name, number in standins.items() if not is_recomputation(name)}
    report.differences = differences(prepared, engine=any(part.engine for part in report.train_parts()))
    report.patches = patch_uses(prepared.report, hooks if report.train_parts() else None)


def _timed_parts(screen: PlainScreen, total: int) -> Callable[[str], AbstractContextManager[None]]:
    """Return a context manager that prints the start and the duration of each part."""
    numbers = itertools.count(1)

    @contextlib.contextmanager
    def part(name: str) -> Iterator[None]:
        began = time.monotonic()
        screen.note(f"{name}: part {next(numbers)} of {total}")
        yield
        screen.note(f"{name}: took {clock(time.monotonic() - began)}")

    return part


def _backend(prepared: Prepared) -> str:
    """Return the name of the training backend; "" for a trainer with its own keys, which no level trains."""
    if prepared.recipe.has_own_keys:
        return ""
    return f"{prepared.recipe.actor.strategy}{' with MindSpeed' if has_mindspeed(prepared) else ''}"


def _new_record(prepared: Prepared, level: str, suffix: str = "", *, has_verdict: bool = False) -> RunRecord:
    """Create the record NAME.rehearsal, with a number if the name is taken."""
    runs = runs_folder(prepared.paths)
    base = f"{prepared.recipe.name}.rehearsal{suffix}"
    names = itertools.chain([base], (f"{base}-{number}" for number in itertools.count(2)))
    name = next(name for name in names if not os.path.lexists(runs / name))
    begun = {"rehearsal": level, "gets_verdict": has_verdict}
    return new_record(prepared, runs, name, {**run_facts(prepared), **attempt_facts(prepared), **begun})


def _layout(prepared: Prepared) -> Parallelism:
    """Return the sizes that the trainer passes to Megatron, including the layers of each stage."""
    if prepared.recipe.has_own_keys:
        tree = compose_config(prepared.paths.code, config_location(prepared.recipe))
        return own_layout(prepared.loaded, tree)
    layout, known = layout_of(prepared.loaded), facts_of(prepared.loaded, prepared.paths.code).layout
    return layout if known is None else replace(layout, model=known.model, rollout=known.rollout)


def _on_cpu(prepared: Prepared, name: str) -> Recipe:
    """Return the recipe for a CPU, scaled down unless its trainer has its own keys."""
    if prepared.recipe.has_own_keys:
        return prepared.recipe.model_copy(update={"name": name, "device": "cpu"})
    return scale_recipe(prepared.recipe, name)


def _child(prepared: Prepared, record: RunRecord, *, npu: bool) -> TrainingChild:
    """Return the training interpreter on a CPU, without a training's stand-ins, since these levels use others.

    Args:
        npu: Whether the stand-in for torch_npu is among them.
    """
    small = prepared.with_recipe(_on_cpu(prepared, record.name))
    command = small.command(record.folder.parent, record.mark, 1, None)
    own = {
        k: v
        for k, v in command.environment.items()
        if k not in ("NPU_RL_STANDINS", "NPU_RL_RAY", "NPU_RL_NODES", "NPU_RL_USAGE")
    }
    standins = [INJECTED, REHEARSAL, *([NPU] if npu else [])]
    standins += [APEX] if (prepared.paths.code / "mindspeed_llm").is_dir() else []
    if not prepared.recipe.has_own_keys and prepared.recipe.rollout.engine == "vllm":
        known = vllm_version(prepared.paths.code) == VLLM_STANDINS  # the stand-ins refuse other versions
        standins += [VLLM] if known else []
        # vllm-ascend's plugin would ask for a device.
        own["VLLM_PLUGINS"] = vllm_on_cpu(prepared.paths.code)["VLLM_PLUGINS"] if known else ""
    path = os.pathsep.join(map(str, [*standins, prepared.paths.code]))
    environment = {**os.environ, **own, "PYTHONPATH": path}
    return TrainingChild(prepared.paths.code, Path(prepared.interpreter.path), environment)
