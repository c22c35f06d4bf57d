"""Python files that a recipe names: reward functions, classes by file, and the chat template's text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.recipes.judgement.file_definitions import definitions_in
from npu_rl.recipes.judgement.named_files import named_file_findings
from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.code_trees import lay

TREE = {
    "verl/utils/dataset/own.py": "class MyDataset: pass\n",
    "verl/__init__.py": "",
    "rewards/share.py": "def compute_score(data_source, solution_str, ground_truth): ...\n",
    "rewards/many.py": "def one(): ...\nif True:\n    made = one\n    def under_an_if(): ...\nclass Callable_: ...\n",
    "rewards/open.py": "from rewards.share import *\n",
    "rewards/lazy.py": "def __getattr__(name): ...\n",
    "rewards/broken.py": "def compute_score(:\n",
}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return lay(tmp_path / "code", TREE)


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A recipe of a person, and files beside it."""
    score = "def compute_score(data_source, solution_str, ground_truth, extra_info): ...\n"
    reward = "reward: {function: './score.py:compute_score'}\n"
    recipe = f"schema: 1\nextends: quickstart\nname: mine\n{reward}"
    return lay(tmp_path / "mine", {"score.py": score, "r.yaml": recipe})


def found(code: Path | None, *said: str, here: bool = False, recipe: str = "quickstart") -> list[Finding]:
    return named_file_findings(load_recipe(recipe, [*said, "reward.arguments=null"]), code, here)


@pytest.mark.parametrize(
    ("named", "rule", "parts", "fix"),
    [
        ("rewards/shar.py", "reward-function-file", ["'rewards/shar.py' of the workspace"], "share.py:compute_score"),
        ("rewards/many.pyy:one", "reward-function-file", ["is not there"], "rewards/many.py:one"),
        ("nowhere/at/all.py:f", "reward-function-file", ["is not there"], "name an existing file"),
        ("rewards", "reward-function-file", ["is a folder"], "name an existing file"),
        ("rewards/broken.py", "reward-function-file", ["can't be read as Python"], "correct its syntax"),
        ("rewards/share.py:digit_share", "reward-function-name", ["it has compute_score"], "share.py:compute_score"),
        ("rewards/many.py:ones", "reward-function-name", ["does not define ones"], "rewards/many.py:one"),
        ("rewards/many.py", "reward-function-name", ["does not define compute_score"], "name a function of the file"),
    ],
)  # fmt: skip
def test_a_reward_function_that_can_not_be_it(
    code: Path, named: str, rule: str, parts: Sequence[str], fix: str
) -> None:
    (one,) = found(code, f"reward.function={named}")
    assert (one.rule, one.severity, one.key) == (rule, Severity.ERROR, "reward.function")
    assert one.where == f"command line: reward.function={named}"
    assert all(part in one.message for part in parts), one.message
    assert fix in one.fix
    if one.fix.startswith("set reward."):  # and the fix works
        key, _, value = one.fix.partition(",")[0].removeprefix("set ").partition(" to ")
        words = {"reward.function": named, key: value}
        assert found(code, *(f"{key}={value}" for key, value in words.items())) == []


@pytest.mark.parametrize(
    "named",
    [
        "rewards/share.py", "rewards/share.py:compute_score", "rewards/many.py:under_an_if", "rewards/many.py:made",
        "rewards/many.py:Callable_", "rewards/open.py:whatever", "rewards/lazy.py:whatever",
        "/file/systems/of/the/cluster/score.py:f", "~/no/such/folder/of/mine/score.py:f",
    ],
)  # fmt: skip
def test_a_reward_function_that_may_be_it_is_let_through(code: Path, named: str) -> None:
    assert found(code, f"reward.function={named}") == []


def test_a_function_beside_the_recipe(beside: Path, code: Path) -> None:
    recipe = str(beside / "r.yaml")
    assert found(code, recipe=recipe) == []
    assert found(None, recipe=recipe) == []
    (beside / "score.py").rename(beside / "scores.py")
    (one,) = found(None, recipe=recipe)
    assert (one.rule, one.where.rpartition("/")[2]) == ("reward-function-file", "r.yaml:4")
    assert one.fix == "set reward.function to ./scores.py:compute_score"


def test_an_absolute_path_is_missed_where_the_recipe_runs(code: Path) -> None:
    (one,) = found(code, "reward.function=/mounts/of/a/cluster/score.py:f", here=True)
    assert one.rule == "reward-function-file"


@pytest.mark.parametrize(
    ("said", "rule", "key"),
    [
        (["data.custom_cls.path=pkg://verl.utils.dataset.owm"], "named-file", "data.custom_cls.path"),
        (["data.custom_cls.path={tmp}/nothing.py"], "named-file", "data.custom_cls.path"),
        (["data.custom_cls.path=file://{tmp}/nothing.py"], "named-file", "data.custom_cls.path"),
        (
            ["data.custom_cls.path=pkg://verl/utils/dataset/own", "data.custom_cls.name=MyDataSet"],
            "named-class",
            "data.custom_cls.name",
        ),
        (["data.sampler.class_path={tmp}/nothing.py"], "named-file", "data.sampler.class_path"),
    ],
)
def test_a_class_by_its_file(code: Path, tmp_path: Path, said: list[str], rule: str, key: str) -> None:
    words = [f"overrides.{word.format(tmp=tmp_path)}" for word in said]
    (one,) = found(code, *words, "reward.function=rewards/share.py", here="{tmp}" in said[0])
    assert (one.rule, one.trainer_key, one.path) == (rule, key, ("overrides", key))
    if rule == "named-class":
        assert one.fix == "set overrides.data.custom_cls.name to MyDataset"


@pytest.mark.parametrize(
    "said",
    [
        ["data.custom_cls.path=pkg://verl.utils.dataset.own", "data.custom_cls.name=MyDataset"],
        ["data.custom_cls.path=pkg://a_package_of_the_host.x"],
        ["data.custom_cls.path=beside/the/worker.py"],
        ["data.custom_cls.path=/mounts/of/a/cluster/own.py"],
    ],
)
def test_a_class_that_may_be_there_is_let_through(code: Path, said: list[str]) -> None:
    words = [f"overrides.{word}" for word in said]
    assert found(code, *words, "reward.function=rewards/share.py") == []


@pytest.mark.parametrize(
    ("text", "fine"), [("./chat.jinja", False), ("/t/chat.txt", False), ("'{{ messages }}'", True)]
)
def test_a_chat_template_is_its_text(code: Path, text: str, fine: bool) -> None:
    template = f"overrides.actor_rollout_ref.model.custom_chat_template={text}"
    told = [one.rule for one in found(code, template, "reward.function=rewards/share.py")]
    assert told == ([] if fine else ["chat-template"])


def test_names_of_every_statement_of_the_module_are_defined_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "score.py"
    path.write_text(
        "match 1:\n    case 1:\n        def in_match(): pass\n        a = 1\n"
        "for b in (c := [1]):\n    d, (e, *f) = 1, (2, 3)\n"
        "if a:\n    def twice(): hidden = 1\nelse:\n    def twice(): pass\n"
        "try:\n    with open('x') as g: pass\nexcept OSError:\n    h = 1\nelse:\n    i: int = 1\nfinally:\n    j = 1\n"
    )
    defined = definitions_in(path)
    assert defined is not None
    assert defined.names == {*"abcdefghij", "in_match", "twice"}
    assert set(defined.callables) == {"in_match", "twice"} and not defined.may_define_more
