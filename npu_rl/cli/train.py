"""npu-rl train"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.cli.show import print_json, tell

if TYPE_CHECKING:
    from npu_rl.training.prepare import Prepared
    from npu_rl.training.train import Trained


def run(
    recipe: str,
    overrides: Sequence[str],
    workspace: Path | None,
    python: str | None,
    dry_run: bool,
    rehearse: str | None,
    resume: bool,
    benchmark: bool,
    as_json: bool,
) -> None:
    from npu_rl.recipes.load import load_recipe
    from npu_rl.training.prepare import prepare
    from npu_rl.workspace.layout import find_workspace
    from npu_rl.workspace.recover import recover

    loaded = load_recipe(recipe, overrides)
    layout = find_workspace(workspace)
    recover(layout, tell)
    prepared = prepare(
        loaded, layout, python, tell, rehearse=rehearse is not None or dry_run, benchmark=benchmark
    )
    if dry_run:
        _plan(prepared, as_json)
    elif rehearse is not None:
        _rehearse(prepared, rehearse, as_json)
    else:
        _train(prepared, resume, as_json)


def _train(prepared: Prepared, resume: bool, as_json: bool) -> None:
    from npu_rl.training.prepare import runs_folder
    from npu_rl.training.screen import final_curve, screen_for
    from npu_rl.training.train import RunFailed, train

    name = prepared.recipe.name
    tell(f"{name}: {prepared.recipe.steps} steps, tree {prepared.lock.tree}, {prepared.interpreter.shown}")
    tell(f"Recorded in {runs_folder(prepared.layout) / name}")
    goal = prepared.recipe.reward.goal
    screen = screen_for(dies_per_card=prepared.recipe.cluster.dies_per_card)
    try:
        trained = train(prepared, screen, resume=resume)
    except RunFailed as failed:
        screen.close()
        if failed.points:
            tell(final_curve(failed.points, goal=goal))
        raise
    finally:
        screen.close()
    if as_json:
        print_json(trained.to_json())
    else:
        _print(prepared, trained)


def _print(prepared: Prepared, trained: Trained) -> None:
    from npu_rl.training.screen import final_curve

    goal = prepared.recipe.reward.goal
    print(final_curve(trained.points, goal=goal))
    reached = f"mean reward {trained.final:.3f}" if trained.final is not None else "no reward"
    against = f" (goal {goal:g})" if goal is not None else ""
    print(f"{prepared.recipe.name}: {reached}{against} after {trained.points[-1].step} steps")
    print(f"Record: {trained.record.folder}  ({trained.ended.seconds:.0f} s)")
    print(f"Curves: tensorboard --logdir {trained.record.tensorboard}")


def _plan(prepared: Prepared, as_json: bool) -> None:
    from npu_rl.training.train import plan_run

    written = plan_run(prepared)
    if as_json:
        print_json({"folder": str(written.folder), "files": list(written.files), "command": written.command})
        return
    print(written.command)
    tell(f"Nothing was started. Written to {written.folder}: {', '.join(written.files)}")


def _rehearse(prepared: Prepared, level: str, as_json: bool) -> None:
    from npu_rl.training.rehearsal.rehearse import rehearse
    from npu_rl.training.screen import screen_for

    screen = screen_for(dies_per_card=prepared.recipe.cluster.dies_per_card)
    try:
        report = rehearse(prepared, level, screen, tell)
    finally:
        screen.close()
    if as_json:
        print_json(report.to_json())
    else:
        print(report.text())
    if not report.ok:
        raise SystemExit(1)
