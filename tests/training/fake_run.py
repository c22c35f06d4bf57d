"""A run as `train` makes one, with a trainer that only says what verl says.

The recipe is the quickstart's, the training interpreter a script that starts fake_trainer.py with these options.
"""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from npu_rl.common.bundled import data_root
from npu_rl.common.errors import NpuRlError
from npu_rl.common.interpreter import Interpreter
from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.stack.lock import lock_model
from npu_rl.training.host.workspace_environment import workspace_environment
from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.run.allow_drift import AllowedDrift
from npu_rl.training.run.begin_run import new_record
from npu_rl.training.run.prepare import Prepared
from npu_rl.training.run.recorded_facts import run_facts
from npu_rl.training.run.train import TrainedRun, run_attempt
from npu_rl.workspace.folder.receipt import Receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.verify import Report
from tests.training.processes import TRAINER

MAKER = 'if [ "$2" = npu_rl_make ]; then mkdir -p "$3/model"; echo {{}} > "$3/model/config.json"\n{slow}\nexit; fi\n'


@dataclass(frozen=True)
class FakeRun:
    """A folder for one run named demo.

    place: where the trainer says that it is ready, and is told to go on. trainer: the program that is the trainer.
    """

    root: Path
    recipe: str = "quickstart"
    trainer: Path = TRAINER

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def place(self) -> Path:
        return self.root / "trainer"

    def prepared(self, options: Sequence[str], overrides: Sequence[str] = (), steps: int = 5) -> Prepared:
        """What `prepare` would give."""
        self.place.mkdir(parents=True, exist_ok=True)
        script = self.root / "python"
        words = [sys.executable, str(self.trainer), str(self.place), *options]
        slow = (
            f"exec {sys.executable} {shlex.quote(str(self.trainer))} {shlex.quote(str(self.place))} be=making"
            if "slow-maker" in options
            else ""
        )
        stacks = f'if [ "$2" = npu_rl_stacks ]; then exec {shlex.quote(sys.executable)} "$@"; fi\n'
        place = shlex.quote(str(self.place))
        gate = f"echo $$ > {place}/p; mv {place}/p {place}/execing.pid\n"
        gate += f"while [ ! -e {place}/go ]; do sleep 0.02; done\n"
        before = gate if "before-exec" in options else ""
        script.write_text(
            f'#!/bin/sh\n{MAKER.format(slow=slow)}{stacks}{before}exec {shlex.join(words)} "$@"\n'
        )
        script.chmod(0o755)
        paths = WorkspacePaths(self.root)
        paths.hidden.mkdir(exist_ok=True)
        paths.lock.write_bytes((data_root() / "manifests" / "quickstart.lock.json").read_bytes())
        own_goal = any(word.startswith("reward.goal=") for word in overrides)
        goal = ["reward.goal=null"] if self.recipe == "quickstart" and not own_goal else []
        said = [f"steps={steps}", "name=demo", *goal, *overrides]
        lock = lock_model.read(paths.lock)
        report = Report(lock, lock_model.digest_of(lock), Receipt({}, {}, {}, [], {}, {}), deep=True)
        interpreter = Interpreter(str(script), "3.11.0")
        loaded = load_recipe(self.recipe, said)
        environment = workspace_environment(report, "3.11")
        return Prepared(loaded, paths, report, interpreter, judge(loaded), environment)

    def train(
        self,
        options: Sequence[str],
        overrides: Sequence[str] = (),
        *,
        steps: int = 5,
        resume: bool = False,
        drift: AllowedDrift | None = None,
    ) -> tuple[TrainedRun, str]:
        """One attempt, to its end; and what the screen got."""
        prepared = replace(self.prepared(options, overrides, steps), drift=drift)
        shown = io.StringIO()
        if resume:
            record = RunRecord.load(self.runs, "demo")
        else:
            record = new_record(prepared, self.runs, "demo", run_facts(prepared))
        verls = not prepared.recipe.has_own_keys
        composed = {"trainer": {"project_name": prepared.recipe.logging.project}} if verls else {}
        return run_attempt(prepared, record, composed, PlainScreen(shown), resume=resume), shown.getvalue()


def main(folder: Path, *words: str) -> None:
    """Train once, as a process of its own.

    words: fake_trainer's options; slow-maker: making the model does not end; KEY=VALUE with a dot sets a recipe key.
    """
    os.environ.pop("NPU_RL_RUN", None)
    os.environ["WANDB_API_KEY"] = "wk-S3CRET-1"
    os.chdir(folder)
    overrides = [word for word in words if "." in word.partition("=")[0]]
    try:
        FakeRun(folder).train([word for word in words if word not in overrides], overrides)
    except NpuRlError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
