"""The trainer's own code as the judge of values, as check and train have it run."""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from npu_rl.common.python_roots import INJECTED
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.recipes.judgement import trainer_probe
from npu_rl.recipes.judgement.judge import AssembledTree, Judgement, judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests import hydra_in_process
from tests.code_trees import archive, lay
from tests.own_trainer import TREE, write_recipe
from tests.patchsets.flagship_tree import tree as stack_tree

MINDSPEED_RL = "62e9928ae89d9570f659b46e816bc55e1191b5e7"
VALUES = "values, by the trainer's own code"


@pytest.fixture(autouse=True)
def _the_real_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_probe, "ask", hydra_in_process.ASK)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return lay(tmp_path / "code", TREE)


def judged(code: Path, *overrides: str, python: str = sys.executable, recipe: str = "") -> Judgement:
    loaded = load_recipe(recipe or str(write_recipe(code.parent)), overrides)
    tree = AssembledTree(code, loaded.manifest_facts.name, setup_command="npu-rl setup --python PATH")
    return judge(loaded, tree, find_python=lambda: python, root=code.parent)


def refused(judgement: Judgement) -> list[Finding]:
    return [one for one in judgement.findings if one.rule == "trainer-value"]


def script(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


class TestAFunctionOfTheTree:
    """It runs, though the tree's packages import what no machine without devices has."""

    def test_what_it_accepts_has_no_finding_and_leaves_no_byte_code(self, code: Path) -> None:
        before = sorted(code.rglob("*"))
        judgement = judged(code)
        assert refused(judgement) == [] and judgement.ok and VALUES not in judgement.unchecked
        assert sorted(code.rglob("*")) == before

    def test_what_it_refuses_is_an_error_with_its_words_line_and_key(self, code: Path) -> None:
        judgement = judged(code, "steps=5")
        (found,) = refused(judgement)
        assert (found.severity, found.key, found.certain) == (Severity.ERROR, "steps", True)
        assert "train_iters 5 must be divisible by 2 (own/train.py:20)" in found.message
        assert found.where == "command line: steps=5" and not judgement.ok
        again = judged(code, "steps=5", "plan.except.trainer-value=we know")
        assert not again.ok, "the trainer would end by it"

    def test_a_module_that_is_not_there_is_no_fault_of_the_recipe(self, tmp_path: Path) -> None:
        text = TREE["own/config/rl.py"].replace("\nfrom", "\nimport a_package_of_the_devices\nfrom", 1)
        judgement = judged(lay(tmp_path / "code", {**TREE, "own/config/rl.py": text}))
        why = "No module named 'a_package_of_the_devices' (own/config/rl.py:2)"
        assert judgement.ok and why in judgement.unchecked[VALUES]

    def test_a_package_that_defines_a_name_itself_is_executed_as_a_whole(self, tmp_path: Path) -> None:
        text = "import logging\nmade = 1\ndef Loggers(name): return logging\n"
        assert refused(judged(lay(tmp_path / "code", {**TREE, "own/utils/__init__.py": text}))) == []

    @pytest.mark.upstreams
    def test_mindspeed_rls_own(self, upstreams: Path, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        code = tmp_path / "code"
        for folder in ("cli", "configs", "mindspeed_rl"):
            archive(upstreams / "Ascend+MindSpeed-RL" / "repo", MINDSPEED_RL, folder, code)
        recipe = "mindspeed-rl-grpo-qwen25-7b"
        assert refused(judged(code, recipe=recipe)) == []
        (found,) = refused(judged(code, "cluster.dies=6", recipe=recipe))
        assert "must be divisible by" in found.message and "validate_config.py:" in found.message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('echo \'npu-rl-probed:{"unrun": "it has no hydra"}\'', "it has no hydra; choose an interpreter"),
        ("echo broken >&2; exit 1", "broken"),
        ("exit 1", "exit status 1"),
    ],
)
def test_an_interpreter_that_can_not_is_named_with_what_to_do(
    code: Path, tmp_path: Path, text: str, why: str
) -> None:
    python = script(tmp_path, text)
    judgement = judged(code, python=python)
    assert judgement.ok and refused(judgement) == []
    assert f"{python}: {why}" in judgement.unchecked[VALUES]
    assert "npu-rl setup --python PATH" in judgement.unchecked[VALUES]


def test_it_is_not_run_where_a_key_is_invalid_or_no_function_is_named(code: Path, tmp_path: Path) -> None:
    python = script(tmp_path, f"touch {tmp_path}/ran")
    assert not judged(code, "overrides.nothing.x=1", python=python).ok
    assert judged(code, "trainer.validate=null", python=python).ok
    assert not (tmp_path / "ran").exists()


ENGINE = {
    "vllm/__init__.py": "",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": """
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal
import pydantic

class Graphs(Enum):
    NONE = 0
    FULL = 2

@pydantic.dataclasses.dataclass
class Compilation:
    cudagraph_mode: Graphs = Graphs.NONE
    sizes: list[int] | None = None

    @pydantic.field_validator("cudagraph_mode", mode="before")
    @classmethod
    def _by_name(cls, value: object) -> object:
        return Graphs[value.upper()] if isinstance(value, str) else value

@dataclass
class AsyncEngineArgs:
    load_format: str = "auto"
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    quantization: Literal["fp8"] | str | None = None
    max_model_len: int = 0
    compilation_config: Compilation = field(default_factory=Compilation)
""",
    "vllm/model_executor/model_loader/__init__.py": (
        "from typing import Literal\nimport a_package_of_the_devices\nLoadFormats = Literal['auto', 'dummy']\n"
    ),
    "vllm_ascend/rfork.py": "@register_model_loader('rfork')\nclass Loader: ...\n",
}
ROLLOUT, GRAPHS = "actor_rollout_ref.rollout", "engine_kwargs.vllm.compilation_config"


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("scheduling_policy", "fcfss", "'fcfs' or 'priority'"),
        ("load_format", "dummmy", "auto, dummy, rfork"),
        ("load_format", "rfork", None),
        ("load_format", "dummy_dtensor", None),
        ("engine_kwargs.vllm.quantization", "ascend", None),
        (f"{GRAPHS}.cudagraph_mode", "FULLL", "NONE, FULL"),
        (f"{GRAPHS}.sizes", [1, 2], None),
        (GRAPHS, '{"cudagraph_mode": "FULLL"}', "NONE, FULL"),
    ],
)
def test_vllms_arguments_are_judged_by_their_dataclass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: object, accepted: str | None
) -> None:
    conf = pytest.importorskip("omegaconf").OmegaConf
    code = lay(tmp_path / "code", ENGINE)
    for path in (code, INJECTED):
        monkeypatch.syspath_prepend(path)
    for name in [one for one in sys.modules if one.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("VLLM_PLUGINS", "")
    probe = importlib.import_module("npu_rl_probe")
    config = conf.create({"actor_rollout_ref": {"rollout": {"name": "vllm"}}})
    conf.update(config, f"{ROLLOUT}.{key}", value)
    checks = list(probe._checks_of_vllm(config, [f"{ROLLOUT}.{key}"], code))
    with pytest.raises(ValueError, match=accepted) if accepted else nullcontext():
        for _, check, *values in checks:
            check(*values)


# Of the misspelt values that a static reader refused, those that only a rollout's engine or a worker refuses are left.
WRONG = {
    "algorithm.estimator=grpoo": "algorithm.estimator",
    "overrides.actor_rollout_ref.actor.loss_agg_mode=token_mean": "overrides['actor_rollout_ref.actor.loss_agg_mode']",
    "overrides.actor_rollout_ref.actor.policy_loss.loss_mode=gpso": (
        "overrides['actor_rollout_ref.actor.policy_loss.loss_mode']"
    ),
    "actor.kl_loss.kind=k33": "actor.kl_loss.kind",
}


@pytest.mark.rehearsal
@pytest.mark.upstreams
def test_verl_judges_values(upstreams: Path, tmp_path: Path) -> None:
    components = ("verl", "vllm", "vllm-ascend", "Megatron-LM", "MindSpeed", "mbridge")
    code = stack_tree(upstreams, tmp_path / "code", components, manifest="today")
    recipe = "today-grpo-qwen3-30b"
    right = judged(code, recipe=recipe)
    assert right.errors == () and VALUES not in right.unchecked
    for change, key in WRONG.items():
        found = refused(judged(code, change, recipe=recipe))
        assert {one.key for one in found} == {key} and "(verl/" in found[0].message, change


@pytest.mark.rehearsal
def test_an_interpolation_that_leads_nowhere_is_an_error_of_its_key(code_tree: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("extends: quickstart\noverrides: {trainer.project_name: '${trainer.nope}'}\n")
    tree = AssembledTree(code_tree, "quickstart", setup_command="npu-rl setup --python PATH")
    judgement = judge(load_recipe(str(recipe)), tree, find_python=lambda: sys.executable, root=tmp_path)
    (found,) = refused(judgement)
    assert (found.key, found.where) == ("overrides['trainer.project_name']", f"{recipe}:2")
    assert "trainer.nope" in found.message and VALUES not in judgement.unchecked
