"""`train`: run a recipe in a workspace, record it, and judge the outcome."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from npu_rl.common import host_facts
from npu_rl.common.bounded import read_json
from npu_rl.common.errors import HostError, NpuRlError
from npu_rl.common.masking import masked_data
from npu_rl.common.printable import counted
from npu_rl.common.yaml_documents.document_kind import find_manifest
from npu_rl.recipes.recipe.dump_recipe import recipe_yaml
from npu_rl.recipes.recipe.own_keys import can_resume
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.trainer_keys.plain_config import config_text, plain_config
from npu_rl.training.monitor.explain_failure import explain, last_lines
from npu_rl.training.monitor.long_stage import long_stage
from npu_rl.training.monitor.metrics import Point, rewards
from npu_rl.training.monitor.missing_module import Stack
from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.monitor.step_clock import step_clock
from npu_rl.training.monitor.step_lines import StepLines
from npu_rl.training.monitor.steps_done import steps_done
from npu_rl.training.monitor.watch import Limits, Watch
from npu_rl.training.record.attempt import Attempt, write_json, write_private
from npu_rl.training.record.lost_nodes import lost_nodes, lost_nodes_hint
from npu_rl.training.record.recorded_attempt import recorded_attempt
from npu_rl.training.record.recorded_run import recorded_run, train_command
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.saved_checkpoints.no_checkpoint import no_checkpoint_reason
from npu_rl.training.record.temporary_folders import folder_of, run_folder
from npu_rl.training.run import dry_run, tiny_model
from npu_rl.training.run.attempt_runner import AttemptResult, attempt_once
from npu_rl.training.run.begin_run import begin_run, first_command
from npu_rl.training.run.prepare import Prepared, compose, runs_folder
from npu_rl.training.run.recorded_facts import attempt_facts

GOAL_WINDOW = 5  # last steps whose mean reward is compared with the goal


class RunStopped(NpuRlError):
    """A run that the user or the system stopped; `exit_code` is 128 plus the signal's number."""

    def __init__(self, number: int, record: RunRecord, recipe: Recipe, *, named: bool = False) -> None:
        """Describe how to continue a run of the recipe that signal `number` stopped.

        Args:
            number: The signal's.
            record: The run's.
            recipe: The run's.
            named: Whether the user chose its name.
        """
        why, hint = None, _resume_hint(record, recipe)
        if not hint:
            why = f"It has no checkpoint to resume from: {no_checkpoint_reason(record, recipe)}"
            again = "under another name: name=…" if named else "by the same command, under the next free name"
            saving = "; checkpoint.every=N saves one every N steps" if recipe.checkpoint.every == -1 else ""
            hint = f"Run it again {again}{saving}"
        what = "Stopped. No process of this run is left"
        super().__init__(what, where=str(record.folder), why=why, hint=hint)
        self.exit_code = 128 + number


def _resume_hint(record: RunRecord, recipe: Recipe) -> str:
    """Return a sentence with the command that continues a run, or "" without a checkpoint."""
    step = record.latest_checkpoint if can_resume(recipe) else None
    if step is None:
        return ""
    command = train_command(recorded_run(record.folder.parent, record.name), resume=True)
    return f"Continue from its checkpoint of step {step}: {command}"


class RunFailed(NpuRlError):
    """A failed trainer or an unmet goal. `points` has the metrics by step so far."""

    points: tuple[Point, ...] = ()


@dataclass(frozen=True)
class TrainedRun:
    """A successful run.

    Attributes:
        points: Metrics by step, of all attempts.
        final: Mean reward of the last steps; None without rewards.
    """

    record: RunRecord
    attempt: Attempt
    ended: AttemptResult
    points: list[Point]
    final: float | None

    def to_json(self) -> dict[str, object]:
        """Return the result as documented in docs/json.md."""
        return {
            "ok": True,
            "proven": self.record.unproven is None,
            **({} if self.record.unproven is None else {"unproven": self.record.unproven}),
            "run": str(self.record.folder),
            "attempt": self.attempt.number,
            "steps": self.points[-1].step if self.points else 0,
            "reward": self.final,
            "curve": [[step, value] for step, value in rewards(self.points)],
            "alarms": [asdict(alarm) for alarm in self.ended.alarms],
            "seconds": round(self.ended.seconds, 1),
        }


@dataclass(frozen=True)
class TransferLimits:
    """The largest mean differences between the token probabilities of rollout and actor.

    Attributes:
        first: In the first step, whose policy is the model's; None: as later.
        later: While the policy learns.
    """

    first: float | None
    later: float


def train(
    prepared: Prepared,
    screen: PlainScreen,
    *,
    resume: bool = False,
    ended_on: str | None = None,
    on_record: Callable[[RunRecord], None] = lambda _: None,
) -> TrainedRun:
    """Run the recipe to its end; with `resume`, from its newest checkpoint.

    A new run that was refused before its trainer began leaves no record, and its name is free again.

    Args:
        ended_on: Another host, where the user knows that the run to resume has ended.
        on_record: Called when the run has a record, before its attempt.

    Raises RunFailed if the trainer fails or misses the goal, RunStopped if the user or the system stops the run, and
    NpuRlError if the record exists or can't be continued.
    """
    begun = begin_run(prepared, screen, resume=resume, ended_on=ended_on)
    record = begun.record
    with record.claim:
        on_record(record)
        screen.note(f"Recorded in {record.folder}")
        try:
            return run_attempt(begun.prepared, record, begun.config, screen, resume=resume)
        except (NpuRlError, OSError):
            if not resume and _has_begun_nothing(record):
                record.discard()
                screen.note(
                    f"Nothing was begun, so the record is removed, and the name {record.name} is free"
                )
            raise


def _has_begun_nothing(record: RunRecord) -> bool:
    """Return whether no attempt started the trainer."""
    return all(attempt.refused or attempt.driver is None for attempt in record.attempts)


def run_attempt(
    prepared: Prepared,
    record: RunRecord,
    composed: Mapping[str, object],
    screen: PlainScreen,
    *,
    resume: bool = False,
    rollout_standin: bool = False,
    transfer: TransferLimits | None = None,
    stop_after: int | None = None,
) -> TrainedRun:
    """Run one attempt of a run that has a record.

    Args:
        composed: The trainer's composed configuration, for the record.
        resume: Whether to continue from the newest checkpoint.
        rollout_standin: Whether the rollout is the stand-in that holds its own copy of the weights.
        transfer: Greatest differences between the probabilities of rollout and actor; None sets them from the
            vocabulary if `rollout_standin`, else leaves them out.
        stop_after: Step after which the attempt is stopped, as by a user.
    """
    recipe = prepared.recipe
    runs = record.folder.parent
    number = record.attempts[-1].number + 1 if record.attempts else 1
    command = prepared.command(
        runs, record.mark, number, folder_of(record.mark), resume=resume, rollout_standin=rollout_standin
    )
    checks = {} if stop_after is None else {"NPU_RL_HOLD_AFTER": str(stop_after)}
    made = not recipe.has_own_keys and recipe.model.make  # a trainer's own keys have no section model
    if made and recipe.model.load_weights is not False and not resume:
        checks["NPU_RL_LOADS"] = "1"
    environment = {**os.environ, **command.environment, **checks}
    secrets = prepared.secrets(environment)
    drift = prepared.drift
    attempt = record.begin_attempt(
        command.argv,
        environment,
        {**host_facts.facts(), "environment": prepared.environment.to_json()},
        recipe_yaml(prepared.loaded),
        secrets=secrets,
        details=attempt_facts(prepared),
    )
    try:
        if drift:
            drift.write(attempt.folder)
        if record.unproven is not None:
            screen.note(f"UNPROVEN: {record.unproven}")
        write_json(attempt.folder / "composed.json", masked_data(composed, known=secrets))
        with run_folder(record.mark) as ray:
            _make_tiny_model(prepared, runs, environment, screen)
            if command.arguments is not None:  # in the folder that is removed: it may hold secrets
                config = plain_config(recipe, prepared.paths.code, command.values)
                write_private(command.config_file, config_text(config).encode())
            ended = attempt_once(
                attempt,
                command.argv,
                environment,
                run_id=record.mark,
                total=recipe.steps,
                watch=_watch(prepared, rollout_standin, transfer, record if resume else None),
                clock=step_clock(recipe, prepared.judgement.plan),
                screen=screen,
                ray=ray,
                lines=_step_lines(recipe),
                stop_after=stop_after,
            )
    except KeyboardInterrupt as interrupt:  # with the signal's number, but for Python's own at SIGINT
        attempt.close("stopped", None, 128 + next(iter(interrupt.args), signal.SIGINT))
        raise
    except (NpuRlError, OSError) as error:
        attempt.close("failed", None, getattr(error, "exit_code", 1), error=error)
        raise
    attempt.close(ended.outcome, ended.code, ended.exit_code, signal=ended.signal)
    try:
        return _result(prepared, record, attempt, ended)
    except (RunFailed, HostError) as failed:
        if isinstance(failed, RunFailed):
            failed.points = tuple(record.curve())
        attempt.fall_short(failed)
        raise


def write_dry_run(prepared: Prepared) -> dry_run.DryRun:
    """Write the resolved recipe and the scripts of a dry run. Only runs Hydra, to compose the configuration."""
    runs = runs_folder(prepared.paths)
    command = first_command(prepared, runs)
    written = dry_run.write(runs, prepared, command, compose(prepared, command))
    if prepared.drift is None:
        return written
    return replace(written, files=(*written.files, *prepared.drift.write(written.folder)))


def _step_lines(recipe: Recipe) -> StepLines:
    names = {str(name): own for name, own in recipe.trainer.metrics.items()}
    return StepLines(recipe.trainer.log == "iterations", names)


def _make_tiny_model(
    prepared: Prepared, runs: Path, environment: dict[str, str], screen: PlainScreen
) -> None:
    if not tiny_model.is_needed(prepared.recipe):
        return
    folder = tiny_model.model_folder(runs, prepared.recipe, prepared.interpreter)
    made = folder.is_dir()  # then its files are only checked
    with nullcontext() if made else long_stage(screen, "making the model and the data"):
        tiny_model.make(folder, prepared.recipe, prepared.interpreter, environment)


def _watch(
    prepared: Prepared, rollout_standin: bool, transfer: TransferLimits | None, resumed: RunRecord | None
) -> Watch:
    rehearsal = rollout_standin or transfer is not None
    limits = Limits(
        goal=prepared.recipe.reward.goal,
        vocabulary=_vocabulary(prepared) if rollout_standin else None,
        transfer=transfer.later if transfer else None,
        first_transfer=transfer.first if transfer else None,
        weights_compared=rehearsal,
    )
    fatal = ("transfer", "nan") if rehearsal else ()
    watch = Watch(limits, fatal=fatal)
    if resumed is not None:
        done = resumed.latest_checkpoint or 0
        watch.go_on_from(point for point in resumed.curve() if point.step <= done)
    return watch


def _vocabulary(prepared: Prepared) -> int | None:
    folder = tiny_model.model_folder(runs_folder(prepared.paths), prepared.recipe, prepared.interpreter)
    try:
        size = read_json(folder / "model" / "config.json").get("vocab_size")
    except (OSError, ValueError):
        return None
    return int(size) if size else None


def _result(prepared: Prepared, record: RunRecord, attempt: Attempt, ended: AttemptResult) -> TrainedRun:
    if ended.signal is not None:
        given = prepared.loaded
        named = not given.free_name and any(word.startswith("name=") for word in given.overrides)
        raise RunStopped(ended.signal, record, prepared.recipe, named=named)
    if ended.fatal is not None:
        raise RunFailed(
            ended.fatal.message,
            where=str(attempt.driver_log),
            why=ended.fatal.cause,
            hint=f"Look at {ended.fatal.place}. {ended.fatal.hint}".rstrip(),
        )
    if ended.planned:
        return TrainedRun(record, attempt, ended, record.curve(), None)
    if ended.code != 0:
        raise _failure(prepared, record, attempt, ended.code)
    points = record.curve()
    values = [value for _, value in rewards(points)][-GOAL_WINDOW:]
    final = sum(values) / len(values) if values else None
    if steps_done(prepared.loaded, prepared.paths.code, points) < prepared.recipe.steps:
        raise RunFailed(
            f"The trainer ended by itself after step {points[-1].step if points else 0} of {prepared.recipe.steps}",
            where=str(attempt.driver_log),
            why="It reported success (exit status 0).",
            hint=_resume_hint(record, prepared.recipe) or None,
        )
    goal = prepared.recipe.reward.goal
    if goal is not None and (final is None or final < goal):
        raise RunFailed(
            f"The mean reward of the last {len(values)} steps is {final:.3f}, below the goal of {goal:g}"
            if final is not None
            else f"Missing reward to compare with the goal of {goal:g}",
            where=str(attempt.metrics),
            why="The curve is above; sample responses are in samples/.",
        )
    return TrainedRun(record, attempt, ended, points, final)


def _failure(prepared: Prepared, record: RunRecord, attempt: Attempt, code: int) -> NpuRlError:
    """Return the error of a trainer that failed, or of nodes that kept it from being started."""
    refused = recorded_attempt(attempt.folder).refused
    if refused:
        return HostError(refused["what"], where=refused["where"], why=refused["why"], hint=refused["hint"])
    one_machine, log = prepared.recipe.cluster.nodes == 1, str(attempt.driver_log)
    what = f"The trainer failed ({f'signal {-code}' if code < 0 else f'exit status {code}'})"
    lost = lost_nodes(attempt.folder)
    if lost:
        what += f": {counted(len(lost), 'node')} left the Ray cluster"
        return RunFailed(what, where=log, why="\n".join(lost), hint=lost_nodes_hint(one_machine=one_machine))
    stack = Stack(find_manifest(prepared.loaded.manifest), prepared.paths.code)
    # vLLM's engine logs its errors to stdout.
    kept = [path for kind in ("*.err", "worker-*.out") for path in sorted(attempt.workers.rglob(kind))]
    logs = [attempt.driver_log, *kept]
    found = explain(logs, code, one_machine=one_machine, stack=stack)
    again = _resume_hint(record, prepared.recipe)
    if found is None:
        lines = last_lines(attempt.driver_log)
        why = (
            "\n".join(["npu-rl knows no error in its log, which ends:", *lines])
            if lines
            else "It logged nothing."
        )
        return RunFailed(what, where=log, why=why, hint=again or None)
    return RunFailed(
        what,
        where=f"{found.file}:{found.line}",
        why=found.cause + (f"\n{found.excerpt}" if found.excerpt else ""),
        hint="\n".join(filter(None, (found.hint, "" if "--resume" in found.hint else again))) or None,
    )
