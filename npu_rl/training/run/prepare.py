"""Checks before a run starts: recipe, workspace, interpreter and machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from npu_rl.common import byte_code, host_facts, python_roots
from npu_rl.common.environment_variables import RUNS
from npu_rl.common.errors import NpuRlError, UsageError
from npu_rl.common.interpreter import Interpreter
from npu_rl.common.masking import Secrets, masked_value
from npu_rl.common.user_path import user_path
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.judgement.judgement import AssembledTree, Judgement
from npu_rl.recipes.judgement.refused_recipe import RefusedRecipe, refusal_lines
from npu_rl.recipes.recipe.derived_recipe import derive_recipe
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_command import Command, Folders, render
from npu_rl.recipes.sizing.machine import Machine
from npu_rl.recipes.trainer_keys.plain_config import plain_config
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.stack.sources.progress import Notify
from npu_rl.training.host.vllm_environment import vllm_on_cpu
from npu_rl.training.host.workspace_environment import (
    WorkspaceEnvironment,
    require_environment,
    workspace_environment,
)
from npu_rl.training.run import tiny_model
from npu_rl.training.run.allow_drift import AllowedDrift, allowed_drift, drift_digest, parse_reason
from npu_rl.training.run.host_check import require_device, require_host
from npu_rl.training.run.ray_start import ray_needs
from npu_rl.training.run.training_interpreter import installing, sufficient_interpreter
from npu_rl.workspace.folder.locked_manifest import locked_facts
from npu_rl.workspace.folder.receipt import validation_command
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths, check_path
from npu_rl.workspace.verification.expected_digest import Expected
from npu_rl.workspace.verification.require_locked import drift_error
from npu_rl.workspace.verification.verify import Progress, Report, verify


@dataclass(frozen=True)
class Prepared:
    """A recipe that is ready to run on this machine in this workspace.

    Attributes:
        environment: The workspace's environment on this host.
        drift: The workspace's difference from its lock, if the user allowed one.
    """

    loaded: LoadedRecipe
    paths: WorkspacePaths
    report: Report
    interpreter: Interpreter
    judgement: Judgement
    environment: WorkspaceEnvironment
    drift: AllowedDrift | None = None

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return self.loaded.recipe

    @property
    def lock(self) -> Lock:
        """The workspace's lock."""
        return self.report.lock

    def secrets(self, environment: Mapping[str, str]) -> Secrets:
        """Return the secrets of an environment, the lock and the recipe, which must not appear in files or messages."""
        return Secrets.of({**environment, **self.lock.env}, self.loaded.data)

    def command(
        self,
        runs: Path,
        run_id: str,
        number: int,
        ray: Path | None,
        *,
        resume: bool = False,
        rollout_standin: bool = False,
    ) -> Command:
        """Return the command of one attempt.

        Args:
            runs: Folder of all runs.
            ray: Folder of the run's own Ray; None if it is not started.
            resume: Whether to continue from the newest checkpoint.
            rollout_standin: Whether the rollout is the stand-in that holds its own copy of the weights.
        """
        run = runs / self.recipe.name
        key = self._byte_code(run_id)
        folders = Folders(
            code=self.paths.code,
            run=run,
            attempt=run / "attempts" / str(number),
            fixtures=tiny_model.model_folder(runs, self.recipe, self.interpreter),
            byte_code=key,
            pycache=Path(byte_code.place(key)),
            recipe=self.loaded.path.parent,
            ray=ray,
            on_path=self._standin_roots(rollout_standin),
        )
        return render(
            self.recipe,
            folders,
            run_name=self.recipe.name,
            run_id=run_id,
            python=self.interpreter.path,
            known=self.judgement.known,
            search_path=self.judgement.search_path,
            groups=self.judgement.groups,
            needs=ray_needs(self.recipe),
            manifest_env={
                **self.lock.env,
                **(vllm_on_cpu(self.paths.code) if self._vllm_on_cpu(rollout_standin) else {}),
            },
            resume=resume,
            rollout_standin=rollout_standin,
            packages=self.interpreter.packages,
            secrets=[
                name
                for name, value in {**self.lock.env, **self.recipe.env}.items()
                if masked_value(name, value) != value
            ],
        )

    def _byte_code(self, run_id: str) -> str:
        """Return the key of the run's bytecode, the run's own if the tree is unproven."""
        unproven = "" if self.report.ok else run_id
        return byte_code.run_key(self.report.receipt.digest, self.interpreter.shown, unproven)

    def _standin_roots(self, rollout_standin: bool) -> tuple[Path, ...]:
        """Return the stand-in folders for PYTHONPATH.

        torch_npu's is included only for MindSpeed, which can't be imported without it, and for a transformers in the
        tree, which is there because its models were patched to call it; verl's FSDP path uses its ops then.
        """
        packages = ("mindspeed", "transformers") if self.recipe.has_own_keys else ("transformers",)
        patched = self.recipe.megatron or any((self.paths.code / name).is_dir() for name in packages)
        npu = self.recipe.device == "cpu" and patched
        return (
            python_roots.INJECTED,
            *([python_roots.REHEARSAL, python_roots.TENSORS] if self.recipe.device == "cpu" else []),
            *([python_roots.NPU] if npu else []),
            *([python_roots.APEX] if npu and (self.paths.code / "mindspeed_llm").is_dir() else []),
            *([python_roots.VLLM] if self._vllm_on_cpu(rollout_standin) else []),
        )

    def _vllm_on_cpu(self, rollout_standin: bool) -> bool:
        if self.recipe.has_own_keys:
            # There is no word for its engine; what the tree has of vLLM needs the stand-ins to be imported.
            return self.recipe.device == "cpu" and (self.paths.code / "vllm").is_dir()
        return self.recipe.device == "cpu" and self.recipe.rollout.engine == "vllm" and not rollout_standin

    def with_recipe(self, recipe: Recipe) -> Prepared:
        """Return a copy with the recipe scaled down for a rehearsal."""
        return replace(self, loaded=derive_recipe(self.loaded, recipe, "scaled down for the rehearsal"))


def runs_folder(paths: WorkspacePaths) -> Path:
    """Return the folder of run records: NPU_RL_RUNS, or `runs` in the workspace."""
    named = os.environ.get(RUNS.name)
    return user_path(named, RUNS.name).absolute() if named else paths.root / "runs"


def prepare(
    loaded: LoadedRecipe,
    paths: WorkspacePaths,
    python: str | None,
    notify: Notify,
    *,
    rehearse: bool,
    dry_run: bool = False,
    benchmark: bool = False,
    expect: Expected | None = None,
    allow_drift: str | None = None,
    progress: Progress | None = None,
    root: Path = Path("/"),
) -> Prepared:
    """Do all checks that are possible without running code of the stack.

    Args:
        python: The training interpreter; None for the one chosen for the workspace, else npu-rl's own.
        rehearse: Whether this is for a rehearsal, which needs no NPUs and one machine only.
        dry_run: Whether this is for a dry run, which needs no NPUs.
        benchmark: Whether a recipe that only measures time may be run.
        allow_drift: The user's reason for running a workspace that is not as locked.

    Raises:
        UsageError: If the recipe can't be run like this.
        WorkspaceError: If the workspace is not as locked.
        RecipeError: If the recipe's keys or values are invalid, or it is for another manifest.
        HostError: If the machine or the interpreter can't run it.
    """
    check_path(paths.root)
    recipe = loaded.recipe
    reason = None if allow_drift is None else parse_reason(allow_drift)
    if recipe.benchmark and not (rehearse or dry_run or benchmark):
        raise UsageError(
            f"{recipe.name} is for timing: it trains nothing that could be used",
            where=loaded.where("benchmark"),
            hint=f"Time it: npu-rl train {recipe.name} --benchmark",
        )
    if not (rehearse or dry_run):
        require_device(loaded, root)
    report = _verified_report(paths, reason, notify, expect, progress)
    drift = None if report.ok or reason is None else allowed_drift(paths, report, reason, notify)
    stack = locked_facts(report.lock, report.receipt.texts)
    loaded = loaded.in_stack(stack)
    key = byte_code.shell_key(report.receipt.digest) if report.ok else ""
    tree = AssembledTree(paths.code, stack.name, stack, validation_command(paths, report.receipt.setup), key)
    machine = None if rehearse or dry_run else _this_machine(paths, root)

    @cache
    def find_interpreter() -> Interpreter:
        return sufficient_interpreter(python, paths, report, recipe.device, rehearse or dry_run, root)

    judgement = judge(
        loaded,
        tree,
        machine,
        here=machine is not None,
        rehearse=rehearse,
        find_python=lambda: find_interpreter().path,
        root=root,
    )
    _report(judgement, notify, rehearse)
    found = find_interpreter()
    environment = workspace_environment(report, found.short, root, changed=drift_digest(paths, report))
    if expect is not None and expect.environment is not None:
        require_environment(paths, environment, expect.environment)
    if machine is not None:
        install = installing(paths, report, found)
        require_host(recipe, report.lock, found.path, notify, runs_folder(paths), root, install)
    byte_code.remove_unused()
    return Prepared(loaded, paths, report, found, judgement, environment, drift)


def compose(prepared: Prepared, command: Command) -> dict[str, Any]:
    """Compose the trainer's whole configuration with its own Hydra. Raises RecipeError with Hydra's message, masked."""
    from npu_rl.recipes.recipe.trainer_settings import config_location
    from npu_rl.training.run.hydra_compose import compose as composed

    if command.arguments is not None:
        return plain_config(prepared.recipe, prepared.paths.code, command.values)

    environment = {**os.environ, **command.environment, "NPU_RL_STANDINS": ""}
    folder = config_location(prepared.recipe).find_folder(prepared.paths.code)
    try:
        return composed(command.hydra_overrides, folder, command.config, command.python, environment)
    except NpuRlError as error:  # Hydra repeats values without their names
        known = prepared.secrets(os.environ)
        error.why = known.mask(error.why) if error.why else None
        error.where = known.mask(error.where) if error.where else None
        raise


def _verified_report(
    paths: WorkspacePaths,
    reason: str | None,
    notify: Notify,
    expect: Expected | None,
    progress: Progress | None,
) -> Report:
    """Verify the workspace by reading every byte, which also detects changes that quick checks miss."""
    report = verify(paths, notify, deep=True, expect=expect, progress=progress)
    if report.ok:
        if reason is not None:
            notify("note: the workspace equals its lock, so --allow-drift allows nothing.")
        return report
    if reason is not None:
        return report
    raise drift_error(
        paths,
        report,
        "the record of a run would be wrong",
        "--allow-drift REASON runs it as it is: the record keeps the changes, and the run is marked unproven.",
    )


def _report(judgement: Judgement, notify: Notify, rehearse: bool) -> None:
    """Report the findings. Raises RefusedRecipe if an error refuses the recipe.

    Args:
        rehearse: Whether the sizes will be scaled down, so that findings of `plan` are reported but don't refuse.
    """
    refusing = judgement.key_findings if rehearse else judgement.findings
    if any(found.severity is Severity.ERROR for found in refusing):
        raise RefusedRecipe(judgement.recipe, judgement.findings, refusing)
    for found in judgement.findings:
        for line in refusal_lines(found, refusing):
            notify(line)
    for line in judgement.absent_lines:
        notify(line)


def _this_machine(paths: WorkspacePaths, root: Path) -> Machine:
    """Return memory and disk of this machine. Without devices it is a cluster's head, whose memory is irrelevant."""
    has_devices = host_facts.devices("npu", root) or host_facts.devices("cuda", root)
    memory = host_facts.usable_memory(root) if has_devices else None
    return Machine(host=memory, disk=host_facts.free_disk(runs_folder(paths)))
