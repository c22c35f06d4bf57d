"""The command `npu-rl train`."""

from __future__ import annotations

from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Expect, Json, Overrides, Python, Recipe, Workspace, rehearsal_levels
from npu_rl.cli.progress import FilesRead
from npu_rl.cli.show import (
    STARTS_OVER,
    command_line,
    if_interrupted,
    print_json,
    print_report,
    say,
    say_text,
    tell,
    tell_next,
    tell_text,
)

if TYPE_CHECKING:
    from npu_rl.training.record.run_record import RunRecord
    from npu_rl.training.run.prepare import Prepared
    from npu_rl.training.run.train import TrainedRun


@examples(
    "npu-rl train quickstart",
    "npu-rl train deepseek-r1-zero-256die --rehearse   # on this CPU",
    "npu-rl train ./my-recipe.yaml optimizer.lr=1e-6 --dry-run",
)
def train(
    recipe: Recipe,
    overrides: Overrides = None,
    workspace: Workspace = None,
    python: Python = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Write the resolved recipe and scripts, print the command, stop."),
    ] = False,
    rehearse: Annotated[
        str | None,
        typer.Option(
            "--rehearse",
            metavar="[LEVEL]",
            help="Rehearse on this CPU: imports, layout, train or rollout; all that apply (without LEVEL); or quick, "
            "three steps of training.",
            autocompletion=rehearsal_levels,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the run's newest whole checkpoint.")
    ] = False,
    ended_on: Annotated[
        str | None,
        typer.Option(
            "--ended-on",
            metavar="HOST",
            help="With --resume: the other host where the run was begun, which is gone or no longer runs it.",
        ),
    ] = None,
    benchmark: Annotated[
        bool, typer.Option("--benchmark", help="Run a recipe that is for timing and trains nothing.")
    ] = False,
    expect: Expect = None,
    allow_drift: Annotated[
        str | None,
        typer.Option(
            "--allow-drift",
            metavar="REASON",
            help="Run a workspace that differs from its lock: its changes are recorded, and the run is marked "
            "unproven.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Train or rehearse a recipe.

    It trains through Ray on NPUs. A recipe whose device is cpu, and every rehearsal, runs on this CPU.
    """
    from npu_rl.cli import judged
    from npu_rl.recipes.judgement.fault_findings import faults_line_of
    from npu_rl.recipes.judgement.judgement import CheckedRecipe
    from npu_rl.recipes.judgement.refused_recipe import RefusedRecipe
    from npu_rl.training.record.free_name import with_free_name
    from npu_rl.training.record.resumed_overrides import changes_since, last_attempt, resumed_overrides
    from npu_rl.training.record.run_errors import RunGoesOn
    from npu_rl.training.record.run_record import RunRecord
    from npu_rl.training.run.prepare import prepare, runs_folder
    from npu_rl.workspace.folder.discovery import open_workspace
    from npu_rl.workspace.verification.expected_digest import parse_expected

    _demand_one_mode(dry_run, rehearse, resume, ended_on)
    expected = parse_expected(expect or [])
    loaded = judged.load(recipe, [] if resume else overrides or [], json)
    if rehearse is not None:
        from npu_rl.rehearsal.choose_levels import require_possible

        require_possible(loaded, rehearse)
    layout = open_workspace(workspace, tell, loaded.manifest)
    runs = runs_folder(layout)
    notes: list[str] = []  # on a run that may be refused yet
    if not (rehearse is not None or resume):
        with suppress(RunGoesOn) if dry_run else nullcontext():  # a dry run starts nothing
            loaded = with_free_name(loaded, runs, notes.append)
    if resume:  # before the minutes that reading the workspace and composing take
        loaded = judged.load(recipe, resumed_overrides(loaded, overrides or [], runs), json)
        RunRecord.load(runs, loaded.recipe.name).require_ended(ended_on)
        last = last_attempt(runs, loaded.recipe.name)
        if last is not None and (changed := changes_since(last, loaded)):
            notes.append(f"Changed since attempt {last.number}: {changed}")
    if_interrupted(STARTS_OVER)
    try:
        with FilesRead() as progress:
            prepared = prepare(
                loaded, layout, python, tell,
                rehearse=rehearse is not None, dry_run=dry_run, benchmark=benchmark,
                expect=expected, allow_drift=allow_drift, progress=progress,
            )  # fmt: skip
    except RefusedRecipe as refused:
        if not json:
            raise
        print_json(CheckedRecipe(loaded.recipe.name, layout.code, tuple(refused.findings)))
        raise SystemExit(refused.exit_code) from None
    for note in notes:
        tell(note)
    if prepared.drift:
        count = len(prepared.drift.files)
        files = "1 file differs" if count == 1 else f"{count} files differ"
        tell(f"UNPROVEN: {files} from the lock. {prepared.drift.reason}")
    faults = faults_line_of(loaded, layout.code)
    if faults:
        tell(faults)
    name = prepared.recipe.name
    if dry_run:
        _plan(prepared, json)
    elif rehearse is not None:
        if_interrupted("Stopped; the same command rehearses from the start.")
        _rehearse(prepared, rehearse, json)
    else:
        name = _train(prepared, resume, ended_on, json, workspace)
    if not json:
        _tell_next(name, workspace, dry_run=dry_run, rehearsed=rehearse is not None)


def _tell_next(name: str, workspace: Path | None, *, dry_run: bool, rehearsed: bool) -> None:
    """Print the command after a dry run (the training), a rehearsal (the dry run) or a training (its report)."""
    import sys

    from npu_rl.cli import with_level

    given = [word for word in with_level(sys.argv[1:]) if not word.startswith(("--rehearse", "--dry-run"))]
    if dry_run or rehearsed:
        tell_next(*given, *(["--dry-run"] if rehearsed else []))
    else:
        tell_next("report", name, workspace=workspace)


def _demand_one_mode(dry_run: bool, rehearse: str | None, resume: bool, ended_on: str | None) -> None:
    if rehearse is not None:
        from npu_rl.rehearsal.level_names import require_level

        require_level(rehearse)
    given = [("--dry-run", dry_run), ("--rehearse", rehearse is not None), ("--resume", resume)]
    if ended_on is not None and not resume:
        from npu_rl.common.errors import UsageError

        raise UsageError("--ended-on needs --resume", hint="Add --resume, or leave --ended-on out.")
    both = [name for name, is_given in given if is_given]
    if len(both) > 1:
        from npu_rl.common.errors import UsageError

        raise UsageError(
            f"{both[0]} conflicts with {both[1]}",
            why="--resume continues a recorded run; --dry-run and --rehearse start none.",
            hint="Give one of them.",
        )


def _train(
    prepared: Prepared, resume: bool, ended_on: str | None, as_json: bool, workspace: Path | None
) -> str:
    """Train, and print the result. Returns the run's name; another train may have taken the recipe's meanwhile."""
    from npu_rl.training.monitor.plot import final_curve
    from npu_rl.training.monitor.screen import screen_for
    from npu_rl.training.run.train import RunFailed, train

    name = prepared.recipe.name
    tell(f"{name}: {prepared.recipe.steps} steps, tree {prepared.lock.tree}, {prepared.interpreter.shown}")
    goal = prepared.recipe.reward.goal

    def recorded(record: RunRecord) -> None:
        """Refer to the record, which exists from here on. RunStopped replaces this once the trainer runs."""
        shown = command_line("runs", "show", record.name, workspace=workspace)
        if_interrupted(f"Stopped; `{shown}` shows the run.")

    try:
        with closing(screen_for()) as screen:
            trained = train(prepared, screen, resume=resume, ended_on=ended_on, on_record=recorded)
    except RunFailed as failed:
        if failed.points:
            tell_text(final_curve(failed.points, goal=goal))
        raise
    if as_json:
        print_json(trained.to_json())
    else:
        _print(prepared, trained)
    return trained.record.name


def _print(prepared: Prepared, trained: TrainedRun) -> None:
    from npu_rl.common.printable import counted
    from npu_rl.training.monitor.metrics import rewards
    from npu_rl.training.monitor.plot import final_curve
    from npu_rl.training.run.train import GOAL_WINDOW

    goal = prepared.recipe.reward.goal
    say_text(final_curve(trained.points, goal=goal) + "\n")
    reached = "no reward"
    if trained.final is not None:
        last = counted(min(GOAL_WINDOW, len(rewards(trained.points))), "step")
        reached = f"mean reward {trained.final:.3f} in the last {last}"
    against = f" (goal {goal:g})" if goal is not None else ""
    say(f"{trained.record.name}: {trained.points[-1].step} steps, {reached}{against}")
    if trained.record.unproven is not None:
        say(f"UNPROVEN: {trained.record.unproven}")
    say(f"Record: {trained.record.folder}  ({trained.ended.seconds:.0f} s)")
    say(f"Curves: tensorboard --logdir {trained.record.tensorboard}")


def _plan(prepared: Prepared, as_json: bool) -> None:
    from npu_rl.training.run.dry_run import lacks_cluster_address
    from npu_rl.training.run.train import write_dry_run

    written = write_dry_run(prepared)
    if as_json:
        print_json(written)
        return
    say(written.command)
    tell(f"Nothing was started. Written to {written.folder}: {', '.join(written.files)}")
    if lacks_cluster_address(prepared.recipe):
        tell(
            "Give cluster.address=HOST:PORT of Ray's head: run.sh needs it, and head.sh and worker.sh come with it"
        )


def _rehearse(prepared: Prepared, level: str, as_json: bool) -> None:
    from npu_rl.rehearsal.rehearse import rehearse
    from npu_rl.training.monitor.screen import screen_for

    with closing(screen_for()) as screen:
        report = rehearse(prepared, level, screen, tell)
    print_report(report.to_json() if as_json else None, lambda: report.text() + "\n", as_json=as_json)
    if not report.ok:
        raise SystemExit(1)
