"""An adaptation that is switched on in a tree without its patch is an error, wherever it is switched on."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.judgement.adaptation_check import RULE
from npu_rl.recipes.judgement.judge import AssembledTree, Judgement, judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.trainer_code.adaptation_switches import switches_without_patch
from tests.code_trees import lay
from tests.own_trainer import TREE, write_recipe

RUNTIME = {
    "npu_rl_runtime/__init__.py": "",
    "npu_rl_runtime/host_copies.py": 'SLUG = "host-copies"\n',
    "npu_rl_runtime/rollout_offload/slug.py": 'SLUG = "rollout-offload"\n',
}
CALLED = {"own/copies.py": "from npu_rl_runtime import (\n    dapo_steps,\n    host_copies,\n)\n"}


def judged(folder: Path, files: dict[str, str], *overrides: str, more: str = "") -> Judgement:
    folder.mkdir(exist_ok=True)
    code = lay(folder / "code", {**TREE, **RUNTIME, **files})
    recipe = load_recipe(str(write_recipe(folder, more)), overrides)
    return judge(recipe, AssembledTree(code, "quickstart"))


def found(judgement: Judgement) -> list[str]:
    return [str(one) for one in judgement.errors if one.rule == RULE]


def test_a_switch_of_the_recipe_or_its_environment(tmp_path: Path) -> None:
    why = "host-copies is switched on, and no file of the tree calls it: its patch is not in the tree"
    for argument, fix in (
        ("adaptations.host-copies=true", "remove adaptations.host-copies"),
        ("env.NPU_RL_HOST_COPIES=on", "remove env.NPU_RL_HOST_COPIES"),
    ):
        (one,) = found(judged(tmp_path / "without", {}, argument))
        assert why in one and f"fix: {fix} [{RULE}]" in one
        assert found(judged(tmp_path / "with", CALLED, argument)) == []
    for argument in ("adaptations.host-copies=false", "env.NPU_RL_HOST_COPIES=0", "env.NPU_RL_RUNS=1"):
        assert found(judged(tmp_path, {}, argument)) == []
    more = "plan: {except: {adaptation-without-patch: I know}}\n"
    assert found(judged(tmp_path, {}, "adaptations.host-copies=true", more=more)) == []


def test_a_switch_of_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`train` hands the shell's variables to the run."""
    monkeypatch.setenv("NPU_RL_HOST_COPIES", "1")
    (one,) = found(judged(tmp_path, {}))
    assert (
        one.startswith("NPU_RL_HOST_COPIES of the shell: host-copies") and "unset NPU_RL_HOST_COPIES" in one
    )
    assert found(judged(tmp_path, {}, "adaptations.host-copies=false")) == []  # the recipe goes before
    assert found(judged(tmp_path, CALLED)) == []


def invalid(judgement: Judgement) -> list[str]:
    return [str(one) for one in judgement.errors if one.rule == "environment-value"]


def test_a_switch_of_the_shell_that_is_neither_on_nor_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run would end with it, in the first process that reads the switch; it reads the name in capitals alone."""
    for name, value in (("HOST_COPIES", "2"), ("RUNS", "/data/runs"), ("host_copies", "2")):
        monkeypatch.setenv(f"NPU_RL_{name}", value)
    (one,) = invalid(judged(tmp_path, CALLED))
    assert one.startswith("NPU_RL_HOST_COPIES of the shell: NPU_RL_HOST_COPIES='2' is neither 1 nor 0")
    assert "fix: unset NPU_RL_HOST_COPIES, or set adaptations.host-copies [" in one
    assert invalid(judged(tmp_path, CALLED, "adaptations.host-copies=true")) == []


@pytest.mark.parametrize("given", ["shell", "recipe"])
def test_a_switch_of_a_users_own_patch_that_is_neither_on_nor_off(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "NPU_RL_" + "OUR_OWN"
    tree = {**CALLED, "verl/own.py": 'if enabled("our-own"):\n    pass\n'}
    if given == "shell":
        monkeypatch.setenv(name, "2")
    (one,) = invalid(judged(tmp_path, tree, *([f"env.{name}=2"] if given == "recipe" else [])))
    assert f"{name}='2' is neither 1 nor 0" in one


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("from npu_rl_runtime import host_copies\n", {"host-copies"}),
        ("from npu_rl_runtime.rollout_offload import (\n  a)\n", {"rollout-offload"}),
        ('if switches.enabled("host-copies"):\n    pass\n', {"host-copies"}),
        ('if os.environ["NPU_RL_HOST_COPIES"] == "1":\n    pass\n', {"host-copies"}),
        ('x = 1  # needs enabled("host-copies")\n', set()),
        ('"""See enabled("host-copies") and "NPU_RL_HOST_COPIES"."""\n', set()),
        ('x = "NPU_RL_HOST_COPIES"\n', set()),
        ("from npu_rl_runtime import host_copies_of_others\nimport host_copies\n", set()),
    ],
)
def test_what_calls_an_adaptation(tmp_path: Path, text: str, called: set[str]) -> None:
    slugs = {"host-copies", "rollout-offload"}
    code = lay(tmp_path / "code", {**RUNTIME, "own/a.py": text})
    assert switches_without_patch(code, slugs) == slugs - called
