"""Files and functions that a recipe names: reward functions, classes by file, the model and the data."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_recipes
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.recipes.judgement.file_definitions import definitions_in
from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.judgement.named_files import named_file_findings
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe, load_recipe
from npu_rl.recipes.sizing.model_config import differing_sizes
from tests.code_trees import lay

TREE = {
    "verl/utils/dataset/own.py": "class MyDataset: pass\n",
    "verl/__init__.py": "",
    "rewards/share.py": """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, digit="7"):
    return 0.0
""",
    "rewards/many.py": """
import functools
from typing import Any

def one(data_source, solution_str, ground_truth, extra_info=None): ...
def lists(data_sources, solution_strs, ground_truths, extra_infos): ...
def anything(**kwargs): ...
def also(*, solution_str, ground_truth, **others): ...
def short(solution_str, ground_truth): ...
def needs_more(data_source, solution_str, ground_truth, extra_info, limit): ...

@functools.cache
def wrapped(answer): ...

if True:
    made: Any = anything
    def under_an_if(data_source, solution_str, ground_truth, extra_info): ...

class Callable_: ...
""",
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
    without = [] if any(word.startswith("reward.arguments") for word in said) else ["reward.arguments=null"]
    return named_file_findings(load_recipe(recipe, [*said, *without]), code, here)


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
    "said",
    [
        ["reward.function=rewards/share.py"],
        ["reward.function=rewards/share.py:compute_score", "reward.arguments={digit: '8'}"],
        ["reward.function=rewards/many.py:one"],
        ["reward.function=rewards/many.py:under_an_if"],
        ["reward.function=rewards/many.py:anything"],
        ["reward.function=rewards/many.py:also"],
        ["reward.function=rewards/many.py:made"],
        ["reward.function=rewards/many.py:wrapped"],
        ["reward.function=rewards/many.py:Callable_"],
        ["reward.function=rewards/many.py:needs_more", "reward.arguments={digit: ~, limit: 3}"],
        ["reward.function=rewards/open.py:whatever"],
        ["reward.function=rewards/lazy.py:whatever"],
        ["reward.function=/file/systems/of/the/cluster/score.py:f"],
        ["reward.function=~/no/such/folder/of/mine/score.py:f"],
    ],
)
def test_a_reward_function_that_may_be_it_is_let_through(code: Path, said: list[str]) -> None:
    assert found(code, *said) == []


def test_a_function_beside_the_recipe(beside: Path, code: Path) -> None:
    recipe = str(beside / "r.yaml")
    assert found(code, recipe=recipe) == []
    assert found(None, recipe=recipe) == []
    (beside / "score.py").rename(beside / "scores.py")
    (one,) = found(None, recipe=recipe)
    assert (one.rule, one.where.rpartition("/")[2]) == ("reward-function-file", "r.yaml:4")
    assert one.fix == "set reward.function to ./scores.py:compute_score"


def test_a_file_of_this_machine_is_missed_where_its_folder_is_here(tmp_path: Path, code: Path) -> None:
    (one,) = found(code, f"reward.function={tmp_path}/score.py:f")
    assert (one.rule, one.certain) == ("reward-function-file", False)
    (one,) = found(code, "reward.function=/mounts/of/a/cluster/score.py:f", here=True)
    assert (one.rule, one.certain) == ("reward-function-file", False)


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
    (one,) = found(code, *words, "reward.function=rewards/share.py")
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
    told = [(one.rule, one.certain) for one in found(code, template, "reward.function=rewards/share.py")]
    assert told == ([] if fine else [("chat-template", False)])


# -- the model and the data ----------------------------------------------------------------------------


def real(tmp_path: Path, **changes: str) -> LoadedRecipe:
    """A recipe with a model and data of its own, by default all there."""
    there = {"path": f"{tmp_path}/hf", "train": f"{tmp_path}/train.parquet", "test": "./train.parquet"}
    values = {**there, **changes}
    recipe = (
        "schema: 1\nextends: quickstart\nname: real\n"
        f"model: {{make: ~, path: '{values['path']}'}}\n"
        f"data: {{make: ~, rows: ~, train: ['{values['train']}'], test: ['{values['test']}']}}\n"
    )
    lay(tmp_path, {"hf/config.json": "{}", "train.parquet": "", "r.yaml": recipe})
    return load_recipe(str(tmp_path / "r.yaml"))


@pytest.mark.parametrize(
    ("changes", "rule", "key"),
    [
        ({"path": "/nonexist"}, "model-path", "model.path"),
        ({"path": "{tmp}"}, "model-path", "model.path"),
        ({"path": "./hg"}, "model-path", "model.path"),
        ({"train": "/nonexist/train.parquet"}, "data-file", "data.train[0]"),
        ({"test": "./tests.parquet"}, "data-file", "data.test[0]"),
        ({"test": "~/no/such/folder/of/mine.parquet"}, "data-file", "data.test[0]"),
    ],
)
def test_a_model_or_data_that_is_not_here(
    tmp_path: Path, changes: dict[str, str], rule: str, key: str
) -> None:
    loaded = real(tmp_path, **{name: value.format(tmp=tmp_path) for name, value in changes.items()})
    elsewhere = named_file_findings(loaded, None, here=False)
    beside = any(value.startswith("./") for value in changes.values())
    assert [(one.rule, one.severity) for one in elsewhere] == ([(rule, Severity.NOTE)] if beside else [])
    (one,) = named_file_findings(loaded, None, here=True)
    assert (one.rule, one.key, one.severity) == (rule, key, Severity.ERROR)
    assert one.where.startswith(str(tmp_path / "r.yaml"))


def test_paths_that_only_the_nodes_of_a_run_may_have_are_listed(tmp_path: Path) -> None:
    changes = {
        "path": "/nowhere/m",
        "train": "/nowhere/d/t.parquet",
        "test": "~/no/such/folder/of/mine.parquet",
    }
    loaded = real(tmp_path, **changes)
    elsewhere = judge(loaded)
    assert elsewhere.ok and elsewhere.not_here == {
        "model.path": "/nowhere/m",
        "data.train": "/nowhere/d/t.parquet",
        "data.test": "~/no/such/folder/of/mine.parquet",
    }
    assert elsewhere.absent_lines[1:] == (
        "  model.path: '/nowhere/m'",
        "  data.train: '/nowhere/d/t.parquet'",
        "  data.test: '~/no/such/folder/of/mine.parquet'",
    )
    assert judge(loaded, here=True).not_here == {}, "errors name them"
    assert judge(loaded, rehearse=True).not_here == {}, "a rehearsal needs none of them"


def test_no_path_is_listed_that_is_here_or_has_a_finding(tmp_path: Path) -> None:
    assert judge(real(tmp_path)).absent_lines == ()
    changed = judge(
        real(tmp_path, path="Qwen/Qwen2.5-0.5B", train="hdfs://a/t.parquet", test="./none.parquet")
    )
    assert changed.not_here == {} and "data-file" in [one.rule for one in changed.findings]


def test_own_paths_of_a_trainer_that_are_not_here_are_listed(tmp_path: Path) -> None:
    key = "overrides.actor_config.load"
    listed = judge(load_recipe("mindspeed-rl-grpo-qwen25-7b", [f"{key}=/nowhere/ckpt"])).not_here
    assert listed[key] == "/nowhere/ckpt"
    (tmp_path / "data_packed_input_ids_document.bin").touch()
    data = "overrides.megatron_training.data_path"
    there = judge(load_recipe("mindspeed-rl-grpo-qwen25-7b", [f"{data}={tmp_path}/data"])).not_here
    assert data not in there, "a data set is named by what its files' names begin with"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"path": "Qwen/Qwen2.5-0.5B"},
        {"path": "hdfs://a/model"},
        {"train": "hdfs://a/train.parquet"},
        {"train": "~nobody-of-this-machine/x.parquet"},
    ],
)
def test_what_is_here_or_elsewhere_by_its_name_is_let_through(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    assert named_file_findings(real(tmp_path, **changes), None, here=True) == []


def test_a_checkpoint_that_is_not_here(tmp_path: Path) -> None:
    loaded = load_recipe("deepseek-r1-zero-256die", [f"model.checkpoint={tmp_path}/none"])
    keys = {one.key for one in named_file_findings(loaded, None, here=True)}
    assert keys >= {"model.path", "model.checkpoint", "data.train[0]", "data.test[0]"}
    (one,) = named_file_findings(loaded, None, here=False)
    assert (one.key, one.severity) == ("model.checkpoint", Severity.NOTE)
    assert one.message == f"there is no folder '{tmp_path}/none' on this machine", "its folder is here"


@pytest.mark.parametrize(
    ("name", "path", "command"),
    [
        (
            "deepseek-r1-zero-256die",
            "/d/ds/train.parquet",
            "npu-rl data prepare deepscaler --input FILE --output /d/ds --template r1-zero, or ",
        ),
        (
            "verl-npu-grpo-qwen3-235b",
            "/d/gsm8k/train.parquet",
            "npu-rl data prepare gsm8k --input FILE --output /d/gsm8k, or ",
        ),
        (
            "pai-deepseek-v3-128gpu",
            "/d/MATH-lighteval/train.parquet",
            "npu-rl data prepare math-lighteval --input FILE --output /d/MATH-lighteval, or ",
        ),
        (
            "deepseek-v3-cann-256die",
            "/d/deepscaler/valid.parquet",
            "npu-rl data prepare deepscaler --input FILE --output /d/deepscaler and set "
            "data.train=[/d/deepscaler/train.parquet], or ",
        ),
        (
            "quickstart",
            "{tmp}/train.parquet",
            "make one of deepscaler, gsm8k, math-lighteval (npu-rl data prepare NAME --input FILE --output DIR), or ",
        ),
        (
            "quickstart",
            "{tmp}/gsm8k.parquet",
            "npu-rl data prepare gsm8k --input FILE --output {tmp}/gsm8k and set "
            "data.train=[{tmp}/gsm8k/train.parquet], or ",
        ),
    ],
)
def test_missing_data_comes_with_the_command_that_makes_it(
    tmp_path: Path, name: str, path: str, command: str
) -> None:
    words = [f"data.train=[{path.format(tmp=tmp_path)}]"]
    if name == "quickstart":
        words += ["data.make=~", "data.rows=~", f"data.test=[{tmp_path}/t.parquet]"]
    if name.startswith("deepseek-r1-zero"):
        words.append("reward.function=npu_rl_runtime/rewards/deepscaler.py:compute_scores")
    found = named_file_findings(load_recipe(name, words), None, here=True)
    (one,) = (one for one in found if one.key == "data.train[0]")
    assert one.fix.startswith(command.format(tmp=tmp_path)), one.fix


def test_one_missing_model_is_one_line(tmp_path: Path) -> None:
    found = judge(real(tmp_path, path="/nonexist"), here=True).findings
    assert next(one.rule for one in found if one.key == "model.path") == "model-path"


@pytest.mark.parametrize("path", ["/" + "x" * 300, "./" + "y/" * 3000 + "z", "/dev/null/x", "./r.yaml/x"])
def test_a_path_no_file_system_has(tmp_path: Path, path: str) -> None:
    (one,) = named_file_findings(real(tmp_path, path=path), None, here=True)
    assert one.rule == "model-path"
    loaded = load_recipe("quickstart", [f"reward.function={path}"])
    assert {one.rule for one in named_file_findings(loaded, None, here=True)} == {"reward-function-file"}


def test_a_long_chain_of_branches_is_read(code: Path) -> None:
    branches = "".join(f"elif x == {number}: f{number} = 1\n" for number in range(3000))
    lay(code, {"rewards/long.py": f"x = 0\nif x == -1: pass\n{branches}"})
    started = time.process_time()
    assert {one.rule for one in found(code, "reward.function=rewards/long.py:nothing")} == {
        "reward-function-name"
    } or (definitions_in(code / "rewards/long.py") is None)
    assert time.process_time() - started < 10  # it took minutes: each branch was walked with all after it


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


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "score.py")
    (one,) = found(None, f"reward.function={tmp_path}/score.py")
    assert one.rule == "reward-function-file"


@pytest.mark.parametrize("recipe", sorted(bundled_recipes()))
def test_the_bundled_recipes_name_nothing_that_is_missing(recipe: str) -> None:
    assert named_file_findings(load_recipe(recipe), None, here=False) == []


RUNTIME = "npu_rl_runtime"
FLAGSHIP = "deepseek-r1-zero-256die"
THEIRS = [
    ([], "", ""),
    (["reward.arguments={variant: format}"], "", ""),
    (["reward.manager=naive"], "reward.function", "set reward.manager to batch"),
    (
        [f"reward.function={RUNTIME}/rewards/deepscaler.py:compute_score"],
        "reward.function",
        "set reward.manager to naive",
    ),
    (
        ["reward.arguments={variant: formatt}"],
        "reward.arguments.variant",
        "set reward.arguments.variant to format",
    ),
    (["reward.arguments={varriant: format}"], "reward.arguments.varriant", "write variant for varriant"),
]


# -- the model


TOY = {
    "model_type": "deepseek_v3", "num_attention_heads": 4, "hidden_size": 16, "kv_lora_rank": 8, "q_lora_rank": 8,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "num_hidden_layers": 2, "intermediate_size": 32,
    "vocab_size": 128, "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.mark.parametrize("here", [False, True])
def test_model_path_with_another_model_is_an_error(tmp_path: Path, here: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TOY))
    loaded = load_recipe("deepseek-r1-zero-256die", [f"model.path={tmp_path}"])
    (one,) = [f for f in named_file_findings(loaded, None, here) if f.rule == "weights-architecture"]
    assert (one.severity, one.key) == (Severity.ERROR, "model.path")
    assert "is not model.architecture deepseek-v3: layers 2 and not 61" in one.message


def test_a_judged_recipe_has_first_of_all_that_a_model_is_another(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TOY))
    judgement = judge(load_recipe("deepseek-r1-zero-256die", [f"model.path={tmp_path}"]))
    assert judgement.errors[0].rule == "weights-architecture"


def test_releases_of_one_architecture_may_differ_in_their_positions() -> None:
    """Qwen3-30B-A3B has 40960 positions, and its release of July 2025 has 262144."""
    config = {
        "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936,
        "num_experts": 128, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
        "max_position_embeddings": 262144,
    }  # fmt: skip
    assert differing_sizes("qwen3-30b-a3b", config) == []
    assert differing_sizes("qwen3-30b-a3b", {**config, "num_experts": 64}) == ["experts 64 and not 128"]
