"""verl's example scripts for NPUs, of 0.8 and 0.9: accepted as recipes, and with mistakes judged as by verl."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from npu_rl.common.process import CompletedCommand
from npu_rl.common.python_roots import INJECTED
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.judgement import trainer_probe
from npu_rl.recipes.judgement.judge import AssembledTree, Judgement, judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.sizing.model_config import shape_of
from tests import hydra_in_process
from tests.patchsets.flagship_tree import tree
from tests.plan import published_scripts as published
from tests.plan.published_scripts import TREES, Script

pytestmark = [pytest.mark.upstreams, pytest.mark.rehearsal]
pytest.importorskip("hydra")

COMPONENTS = ("verl", "vllm", "vllm-ascend", "Megatron-LM", "MindSpeed", "mbridge")
A, R, F = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"


@dataclass
class Stack:
    """A code tree as it is locked, and the scripts of its verl."""

    manifest: str
    code: Path
    scripts: tuple[Script, ...]

    def stored(self) -> Iterator[tuple[Script, Path]]:
        """The scripts that are for NPUs only, and their recipes."""
        for script in self.scripts:
            if script.is_for_npus_only and script.is_ours and not script.has_critic:
                yield script, published.HERE / f"{self.manifest}-{script.name}.yaml"

    def judge(self, recipe: Path, *changes: str) -> Judgement:
        """Judge a recipe, its values by the tree's own code."""
        loaded = load_recipe(str(recipe), changes)
        return judge(loaded, AssembledTree(self.code, self.manifest), find_python=lambda: sys.executable)

    def refusals(self, recipe: Path, *changes: str) -> dict[str, str]:
        """The rules that refuse a recipe, but for estimates of memory, which verl has no code for."""
        found = self.judge(recipe, *changes).findings
        memory = ("memory-", "kv-cache-")
        return {
            one.rule: f"{one.key}: {one.message}"
            for one in found
            if one.severity is Severity.ERROR and not one.rule.startswith(memory)
        }


@pytest.fixture(scope="module", params=sorted(TREES, reverse=True))
def stack(
    request: pytest.FixtureRequest, upstreams: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    manifest = request.param
    code = tree(upstreams, tmp_path_factory.mktemp(manifest) / "code", COMPONENTS, manifest=manifest)
    with probe_process(code) as ask, pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_probe, "ask", hydra_in_process.ASK)
        patch.setattr(trainer_probe, "run_quietly", ask)
        yield Stack(manifest, code, tuple(published.scripts(upstreams, TREES[manifest])))


@contextmanager
def probe_process(code: Path) -> Iterator[Callable[..., CompletedCommand]]:
    """Run the probe's questions in one process, which imports the trainer once."""
    script = (
        "import json, sys, npu_rl_probe\n"
        "for line in sys.stdin:\n"
        "    answer = npu_rl_probe.main(json.loads(line))\n"
        "    print(npu_rl_probe.MARK + json.dumps(answer, default=str), flush=True)\n"
    )
    path = os.pathsep.join([str(INJECTED), str(code)])
    env = {**os.environ, "PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    words = [sys.executable, "-B", "-c", script]
    with subprocess.Popen(words, env=env, stdin=PIPE, stdout=PIPE, text=True) as child:
        assert child.stdin and child.stdout

        def ask(given: list[str], *_: object) -> CompletedCommand:
            assert child.stdin and child.stdout
            print(given[-1], file=child.stdin, flush=True)
            lines = iter(child.stdout.readline, "")
            return CompletedCommand(next(one for one in lines if one.startswith(trainer_probe._MARK)), "", 0)

        yield ask
        child.stdin.close()


def test_they_are_accepted_and_say_the_same(stack: Stack) -> None:
    """By the tree's own Hydra each key has the script's value, and nothing refuses it, estimates of memory included."""
    files = {file.name for _, file in stack.stored()}
    assert files == {file.name for file in published.HERE.glob(f"{stack.manifest}-*.yaml")}
    for script, recipe in stack.stored():
        assert published.differences(script, recipe, stack.code) == {}, script.name
        judgement = stack.judge(recipe)
        assert judgement.errors == () and trainer_probe._WHOLE not in judgement.unchecked, script.name


def test_those_that_look_which_device_there_is_are_accepted_too(stack: Stack, tmp_path: Path) -> None:
    """They run on NPUs as well as on GPUs. Not stored: what the script gives is found in the tree, which has them all.

    Estimates of memory are left out, since none says which device it is for.
    """
    found = [one for one in stack.scripts if one.is_ours and not (one.is_for_npus_only or one.has_critic)]
    assert len(found) == (12 if stack.manifest == "today" else 16)
    for script in found:
        recipe = tmp_path / f"{script.name}.yaml"
        published.write_recipe(script, stack.code, stack.manifest, recipe)
        assert published.differences(script, recipe, stack.code) == {}, script.name
        assert stack.refusals(recipe) == {}, script.name


# -- mistakes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """One change of a script: the key with Hydra's sign, and the value."""

    kind: str
    script: str
    key: str
    value: Any

    @property
    def argument(self) -> str:
        return f"{self.key}={'null' if self.value is None else self.value}"

    @property
    def change(self) -> str:
        own = _CLUSTER.get(self.key) or f"overrides.{self.key.lstrip('+')}"
        return f"{own}={'null' if self.value is None else self.value}"


_CLUSTER = {"trainer.n_gpus_per_node": "cluster.dies"}  # only by the recipe's own key
SUMS = ("seq-mean-token-sum", "seq-mean-token-sum-norm")
VALUES: dict[str, list[Any]] = {
    "algorithm.adv_estimator": ["grpoo", "rloo", "reinforce_plus_plus", "optimal_token_baseline", "GRPO"],
    f"{A}.policy_loss.loss_mode": ["vanilla", "gspo", "gpso", "clip_cov", "kl_cov", "clip-higher", "cispo"],
    f"{A}.loss_agg_mode": ["token-mean", "token_mean", *SUMS, "mean"],
    f"{A}.kl_loss_type": ["low_var_kl", "k3", "k4", "mse", "low-var-kl", "k3+", "full"],
    "data.truncation": ["left", "middle", "center", "errors"],
    f"{R}.checkpoint_engine.backend": ["naive", "nccl", "hcclx", "nixl", "gloo"],
    f"{R}.mode": ["async", "sync"],
    f"{R}.gpu_memory_utilization": [0.55, 0, 1.2],
    f"{R}.pipeline_model_parallel_size": [1, 2],
    f"{R}.log_prob_use_dynamic_bsz": [True, False],
    f"{F}.log_prob_use_dynamic_bsz": [True, False],
    f"{A}.use_dynamic_bsz": [True, False],
    f"{A}.router_replay.mode": ["disabled", "R2", "R4"],
    f"{A}.optim.lr_scheduler_type": ["constant", "cosine", "linear", "cosinus"],
    f"{A}.megatron.dtype": ["bfloat16", "float16", "fp8"],
    f"{A}.megatron.use_mbridge": [True, False],
    f"{A}.fsdp_config.strategy": ["fsdp", "fsdp2", "ddp"],
    f"{A}.ppo_micro_batch_size": [8],
    f"{R}.log_prob_micro_batch_size": [8],
}
PRODUCTS: dict[str, list[int]] = {
    "trainer.n_gpus_per_node": [4, 6, 7, 12, 16],
    "data.train_batch_size": [1, 3, 15, 24, 48, 60, 100, 256],
    f"{R}.n": [-4, 0, 1, 2, 3, 5, 8, 16],
    f"{R}.agent.num_workers": [1, 3, 5, 7, 16],
    f"{R}.tensor_model_parallel_size": [1, 2, 3, 5, 16],
    f"{R}.data_parallel_size": [2, 3, 4, 5],
    f"{R}.expert_parallel_size": [1, 2, 8, 16],
    f"{A}.ppo_mini_batch_size": [1, 3, 6, 16, 24, 48, 512],
    f"{A}.ppo_micro_batch_size_per_gpu": [1, 2, 3, 5, 7],
    f"{F}.log_prob_micro_batch_size_per_gpu": [1, 2, 3, 5, 7],
    f"{A}.ulysses_sequence_parallel_size": [1, 2, 3, 8],
    f"{A}.megatron.tensor_model_parallel_size": [1, 2, 3, 4, 8],
    f"{A}.megatron.pipeline_model_parallel_size": [1, 2, 3],
    f"{A}.megatron.context_parallel_size": [1, 2, 3],
    f"{A}.megatron.expert_model_parallel_size": [1, 3, 8, 32],
    f"{A}.ppo_max_token_len_per_gpu": [1024, 40960],
}


def mistakes(stack: Stack, script: Script, seed: str = "") -> Iterator[Mistake]:
    """Twelve, the same in each run: four misspelt keys, values and sizes. What isn't one has to be accepted."""
    name = script.name
    draw = random.Random(f"{stack.manifest} {name}{seed}")
    there = published.resolved(script, stack.code)
    own = [one.partition("=")[0] for one in script.arguments if one[:2] != "--"]
    own = [key for key in own if not published.is_set_by_npu_rl(key.lstrip("+"))]
    for key in draw.sample(own, 4):
        section, _, last = key.rpartition(".")
        at = draw.randrange(1, max(2, len(last)))
        misspelt = [last[:at] + last[at - 1 :], last[:at] + last[at + 1 :], last.replace("_", "", 1) + "s"]
        spelt = f"{section}.".removeprefix(".") + draw.choice(misspelt)
        yield Mistake("key", name, spelt, there.get(key.lstrip("+")) or 1)
    for kind, table in (("value", VALUES), ("product", PRODUCTS)):
        for key in draw.sample([key for key in table if key in there], 4):
            yield Mistake(kind, name, key, draw.choice([one for one in table[key] if one != there[key]]))


def sizes_of(recipe: Path) -> dict[str, int]:
    """The sizes of a recipe's model that Megatron and vLLM divide; none of an unknown one."""
    loaded = load_recipe(str(recipe))
    if loaded.recipe.model.architecture is None:
        return {}
    shape = shape_of(loaded)
    return {"layers": shape.layers, "heads": shape.heads, "groups": shape.kv_heads, "experts": shape.experts}


def test_mistakes_are_judged_as_by_verl(stack: Stack) -> None:
    """What verl's code accepts is accepted, and every misspelt key that it refuses is refused."""
    found = judged(stack)
    assert [one for one in found if one.ours and not one.verl] == []
    assert [one for one in found if one.mistake.kind == "key" and one.verl and not one.ours] == []


@dataclass(frozen=True)
class Judged:
    """A mistake, why verl refuses it, and the rules that do."""

    mistake: Mistake
    verl: str
    ours: dict[str, str]


def judged(stack: Stack, seed: str = "") -> list[Judged]:
    drawn = [(script, recipe, list(mistakes(stack, script, seed))) for script, recipe in stack.stored()]
    found = []
    for (script, recipe, changes), verdicts in zip(drawn, _by_verl(stack, drawn), strict=True):
        assert verdicts[0] == "", (script.name, verdicts[0])
        for one, verl in zip(changes, verdicts[1:], strict=True):
            found.append(Judged(one, verl, stack.refusals(recipe, one.change)))
    return found


def _by_verl(stack: Stack, drawn: list[tuple[Script, Path, list[Mistake]]]) -> list[list[str]]:
    """The verdicts on each script itself and on it with each of its mistakes."""
    asked = [
        (s.arguments, sizes_of(recipe), [one.argument for one in changes]) for s, recipe, changes in drawn
    ]
    done = subprocess.run(
        [sys.executable, "-B", str(Path(__file__).with_name("verl_verdict.py"))],
        input=json.dumps(asked), capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(stack.code)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("verdicts:")]
    found: list[list[str]] = json.loads(line.removeprefix("verdicts:"))
    return found
