"""Everything that is settled before a process starts: recipe, workspace, interpreter, and what will be run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl import byte_code, standins
from npu_rl.bundled import bundled_manifests
from npu_rl.config.finding import Finding, Severity
from npu_rl.environment_variables import RUNS
from npu_rl.errors import HostError, NpuRlError, RecipeError, UsageError, WorkspaceError
from npu_rl.judgement.judge import AssembledTree, Judgement, judge
from npu_rl.lock.lock_model import Lock
from npu_rl.masking import Secrets, masked_value
from npu_rl.recipes.derived_recipe import derived
from npu_rl.recipes.load_recipe import LoadedRecipe
from npu_rl.recipes.schema import Recipe
from npu_rl.recipes.trainer_command import Command, Folders, render
from npu_rl.sizing.machine import Machine
from npu_rl.sources.progress import Notify
from npu_rl.training import host_facts, interpreter, tiny_model
from npu_rl.training.allow_drift import AllowedDrift, allow, reason_of
from npu_rl.training.interpreter import Interpreter
from npu_rl.training.process import run_quietly
from npu_rl.training.vllm_environment import ENVIRONMENT as VLLM_ON_CPU
from npu_rl.user_path import user_path
from npu_rl.verification.verify import Progress, Report, verify
from npu_rl.workspace.confined_changes import LinkOnTheWay, first_link
from npu_rl.workspace.layout import Layout
from npu_rl.workspace.workspace_path import check_path

if TYPE_CHECKING:
    from npu_rl.training.hydra_compose import ComposedConfig


@dataclass(frozen=True)
class Prepared:
    """A recipe that may be run, on this machine, in this workspace. drift: what a person allowed to differ in it."""

    loaded: LoadedRecipe
    layout: Layout
    report: Report
    interpreter: Interpreter
    judgement: Judgement
    drift: AllowedDrift | None = None

    @property
    def recipe(self) -> Recipe:
        return self.loaded.recipe

    @property
    def lock(self) -> Lock:
        return self.report.lock

    def secrets(self, environment: Mapping[str, str]) -> Secrets:
        """What may stand in no file and no message: of this environment, the lock's and the recipe."""
        return Secrets.of({**environment, **self.lock.env}, self.loaded.data)

    def command(
        self,
        runs: Path,
        run_id: str,
        number: int,
        ray: Path | None,
        *,
        resume: bool = False,
        rollout: bool = False,
    ) -> Command:
        """What attempt `number` of the run runs. rollout: with the stand-in that has weights of its own."""
        run = runs / self.recipe.name
        key = self._byte_code(run_id)
        folders = Folders(
            code=self.layout.code,
            run=run,
            attempt=run / "attempts" / str(number),
            made=tiny_model.place(runs, self.recipe, self.interpreter),
            byte_code=key,
            pycache=Path(byte_code.place(key)),
            recipe=self.loaded.path.parent,
            ray=ray,
            on_path=self._on_path(rollout),
        )
        return render(
            self.recipe,
            folders,
            run_name=self.recipe.name,
            run_id=run_id,
            python=self.interpreter.path,
            known=self.judgement.known,
            manifest_env={**self.lock.env, **(VLLM_ON_CPU if self._vllm_on_cpu(rollout) else {})},
            resume=resume,
            rollout_standin=rollout,
            packages=self.interpreter.packages,
            secrets=[
                name
                for name, value in {**self.lock.env, **self.recipe.env}.items()
                if masked_value(name, value) != value
            ],
        )

    def _byte_code(self, run_id: str) -> str:
        """The key of the run's byte code: another for another state of the files, and a fresh one for a tree that
        is not as locked."""
        state = self.report.state() if self.report.ok else run_id
        return byte_code.run_key(self.report.receipt.digest, self.interpreter.shown, state)

    def _on_path(self, rollout: bool) -> tuple[Path, ...]:
        """Folders of stand-ins. torch_npu's is there only for MindSpeed, which can't be imported without it: verl's
        FSDP path would take its operators, too."""
        megatron = self.recipe.device == "cpu" and self.recipe.megatron
        return (
            standins.INJECTED,
            *([standins.NPU] if megatron else []),
            *([standins.VLLM] if self._vllm_on_cpu(rollout) else []),
        )

    def _vllm_on_cpu(self, rollout: bool) -> bool:
        return self.recipe.device == "cpu" and self.recipe.rollout.engine == "vllm" and not rollout

    def with_recipe(self, recipe: Recipe) -> Prepared:
        """The same with a recipe that is scaled down for a rehearsal."""
        return replace(self, loaded=derived(self.loaded, recipe, "scaled down for the rehearsal"))


def runs_folder(layout: Layout) -> Path:
    """Where runs are recorded: NPU_RL_RUNS, or `runs` in the workspace."""
    named = os.environ.get(RUNS.name)
    return user_path(named, RUNS.name).absolute() if named else layout.root / "runs"


def prepare(
    loaded: LoadedRecipe,
    layout: Layout,
    python: str | None,
    tell: Notify,
    *,
    rehearse: bool,
    dry_run: bool = False,
    benchmark: bool = False,
    expect: str | None = None,
    allow_drift: str | None = None,
    progress: Progress | None = None,
    root: Path = Path("/"),
) -> Prepared:
    """Check all that can be checked without running anything of the stack.

    rehearse: an NPU recipe is fine without NPUs, and on one machine. dry_run: without NPUs. benchmark: one that only
    measures time is fine, too. expect: the digest the workspace's lock must have. allow_drift: why a workspace that is
    not as locked may be run all the same. progress: hears how much of the workspace is read. root: where /dev lies,
    for tests.
    Raises UsageError for a recipe that can't be run like this, WorkspaceError for a tree that isn't as locked or
    isn't the recipe's, RecipeError for keys and values, HostError for a machine or an interpreter that can't run it.
    """
    check_path(layout.root)
    recipe = loaded.recipe
    reason = None if allow_drift is None else reason_of(allow_drift)
    if recipe.benchmark and not (rehearse or dry_run or benchmark):
        raise UsageError(
            f"{recipe.name} is for timing: it trains nothing that could be used",
            where=loaded.where("benchmark"),
            hint=f"Time it: npu-rl train {recipe.name} --benchmark",
        )
    if not (rehearse or dry_run):
        _demand_device(recipe, root)
    _demand_plain_runs(layout, recipe.name)
    report = _judged(layout, reason, tell, expect, progress)
    drift = None if report.ok or reason is None else allow(layout, report, reason, tell)
    machine = None if rehearse or dry_run else _this_machine(layout, root)
    judgement = _judged_recipe(loaded, layout, report, tell, rehearse, machine)
    path = interpreter.choose(python, report.receipt.setup)
    required = _requirements(report.lock, rehearse or dry_run, root)
    found = interpreter.look(path, required)
    interpreter.demand(found, required, npu=recipe.device == "npu" and required is report.lock.requirements)
    byte_code.remove_unused()
    return Prepared(loaded, layout, report, found, judgement, drift)


def compose(prepared: Prepared, command: Command) -> ComposedConfig:
    """The trainer's whole configuration, as its own Hydra composes it. Raises RecipeError with Hydra's words."""
    from npu_rl.trainer_code.hydra_entry import entry_point
    from npu_rl.training.hydra_compose import compose as composed

    def run(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
        finished = run_quietly(list(argv), environment, prepared.layout.hidden, 180.0)
        return finished.code, finished.stdout, finished.stderr

    environment = {**os.environ, **command.environment, "NPU_RL_STANDINS": ""}
    folder = entry_point(prepared.layout.code, command.module).folder
    try:
        return composed(command.settings, folder, command.config, command.python, environment, run)
    except NpuRlError as error:  # Hydra repeats values without their names
        known = prepared.secrets(os.environ)
        error.why = known.mask(error.why) if error.why else None
        error.where = known.mask(error.where) if error.where else None
        raise


def _requirements(lock: Lock, rehearse: bool, root: Path) -> tuple[str, ...]:
    """What the interpreter must have: the manifest's requirements, or for a stack for NPUs that is looked at where
    there are none, what rehearsals were run with (the extra `rehearsal`, which is the quickstart's set)."""
    if not (rehearse and lock.device == "npu" and host_facts.npus(root) == 0):
        return lock.requirements
    from npu_rl.manifest.load_manifest import load_manifest

    return tuple(load_manifest("quickstart").manifest.requirements)


def _demand_device(recipe: Recipe, root: Path) -> None:
    if recipe.device == "npu" and host_facts.npus(root) == 0:
        raise HostError(
            f"{recipe.name} is for NPUs, and this machine shows none",
            why="There is no /dev/davinci0, 1, ... here.",
            hint=f"Rehearse it on this CPU: npu-rl train {recipe.name} --rehearse",
        )


def _judged(
    layout: Layout, reason: str | None, tell: Notify, expect: str | None, progress: Progress | None
) -> Report:
    """Every byte of the workspace is read: what quick looks can miss must not stand in a record."""
    report = verify(layout, tell, deep=True, expect=expect, progress=progress)
    if report.ok:
        if reason is not None:
            tell("note: the workspace equals its lock, so --allow-drift allows nothing.")
        return report
    if reason is not None:
        return report
    shown = [f"{drift.kind:<10} {drift.path}" for drift in report.drift[:8]]
    more = len(report.drift) - len(shown)
    raise WorkspaceError(
        "The workspace does not equal its lock, so the record of a run would be wrong",
        where=str(layout.root),
        why="\n".join([*shown, *([f"and {more} more"] if more else [])]),
        hint="npu-rl diff shows the changes; npu-rl setup --manifest NAME --discard puts them aside.\n"
        "--allow-drift REASON runs it as it is: the record keeps the changes, and the run is marked unproven.",
    )


def _demand_plain_runs(layout: Layout, name: str) -> None:
    """Raise LinkOnTheWay for a link where this run writes: `runs` may lead to another disk, what is in it may not.

    A run's own folders are three deep; what the trainer makes below them is its own.
    """
    runs = layout.root / "runs"
    if runs_folder(layout) != runs or not runs.is_dir():
        return
    for folder in runs.iterdir():
        if folder.name == ".made" or folder.name.startswith(name):
            link = first_link(folder, 3)
            if link is not None:
                raise LinkOnTheWay(link)


def _manifest_of(report: Report) -> str:
    """The workspace's manifest as a recipe names it: a bundled one by its name, another by its path."""
    path = str(report.receipt.setup.get("manifest", ""))
    bundled = bundled_manifests().get(report.lock.manifest)
    return shlex.quote(path) if path and Path(path) != bundled else report.lock.manifest


class RefusedRecipe(RecipeError):
    """A recipe that can't be run as it is. findings: everything that was found, errors first. refusing: those of
    them that may stop this run; a rehearsal has its own sizes, so what `plan` says of the recipe's doesn't."""

    def __init__(self, recipe: Recipe, findings: Sequence[Finding], refusing: Sequence[Finding]) -> None:
        errors = [found for found in refusing if found.severity is Severity.ERROR]
        count = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
        super().__init__(
            f"{recipe.name} can't be run as it is: {count}",
            where=errors[0].where,
            why="\n".join(_told_line(found, refusing) for found in findings),
            hint="correct these lines and run the command again",
        )
        self.findings = tuple(findings)


def _judged_recipe(
    loaded: LoadedRecipe,
    layout: Layout,
    report: Report,
    tell: Notify,
    rehearse: bool,
    machine: Machine | None,
) -> Judgement:
    """The judgement, told. rehearse: sizes are scaled down, so what `plan` refuses is told and does not refuse.
    machine: this one, if it will run the recipe."""
    tree = AssembledTree(layout.code, report.lock.manifest, _manifest_of(report))
    judgement = judge(loaded, tree, machine, here=machine is not None)
    refusing = judgement.key_findings if rehearse else judgement.findings
    if any(found.severity is Severity.ERROR for found in refusing):
        raise RefusedRecipe(loaded.recipe, judgement.findings, refusing)
    for found in judgement.findings:
        tell(_told_line(found, refusing))
    return judgement


def _told_line(found: Finding, refusing: Sequence[Finding]) -> str:
    beside = found.severity is Severity.ERROR and found not in refusing
    return f"not for the rehearsal: {found.line()}" if beside else found.line()


def _this_machine(layout: Layout, root: Path) -> Machine:
    """What the recipe will find here. The head of a cluster may have no NPUs, and then its memory says nothing."""
    memory = host_facts.usable_memory(root) if host_facts.npus(root) else None
    return Machine(host=memory, disk=host_facts.free_disk(runs_folder(layout)))


def facts(prepared: Prepared) -> dict[str, object]:
    """What a run's record says of where its code came from."""
    lock = prepared.lock
    return {
        "recipe": prepared.loaded.recipe.name,
        "recipe_files": dict(prepared.loaded.files),
        "recipe_digest": prepared.loaded.digest,
        "overrides": list(prepared.loaded.overrides),
        "manifest": lock.manifest,
        "tree": lock.tree,
        "commit": lock.commit,
        "workspace": str(prepared.layout.root),
        "proven": prepared.drift is None,
        **({"overruled": dict(prepared.judgement.overruled)} if prepared.judgement.overruled else {}),
        **({"drift": prepared.drift.to_json()} if prepared.drift else {}),
        "interpreter": {
            "path": prepared.interpreter.path,
            "version": ".".join(map(str, prepared.interpreter.version)),
            "packages": dict(prepared.interpreter.packages),
        },
    }
