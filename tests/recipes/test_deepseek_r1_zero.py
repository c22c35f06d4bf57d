"""The flagship's recipe: every value has a source, and its own tree reads every key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from npu_rl.data import bundled_recipes, data_root
from npu_rl.manifest.yaml_text import read_yaml
from npu_rl.recipes.hydra_text import argument
from npu_rl.recipes.load import load_recipe
from npu_rl.recipes.settings import flat, settings
from tests.recipes.code_trees import archive, check_recipe, known_keys
from tests.recipes.test_compose import composed

NAME, RANDOM = "deepseek-r1-zero-256die", "deepseek-r1-zero-256die-random-init"
SOURCES = data_root() / "recipes" / f"{NAME}.sources.md"
ROW = re.compile(r"\| `(.+?)` \| `(.+)` \| (\w+) \| (.*?) ?\|")
# These say what the file is, not what is run.
NAMES = {"schema", "name", "title"}
PINS = (
    ("volcengine+verl", "55e3c5bc09c85dba09f736eef476f110ad641b75", "verl"),
    ("ROCm+vllm", "b6553be1bc75f046b00046a4ad7576364d03c835", "vllm"),
    ("vllm-project+vllm-ascend", "b9f715d6ce30ee4511402bc81f1b46219bec2b85", "vllm_ascend"),
    ("NVIDIA+Megatron-LM", "a845aa7e12b3a117e24c2352b9e3e60bad2e3a17", "megatron/core"),
    ("Ascend+MindSpeed", "7ff818c4c77ddb290f61261a6f12d7cfa1bf62e2", "mindspeed"),
)


def said(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each key of a recipe's text with its value; lists are values."""
    for name, value in data.items():
        if isinstance(value, dict):
            yield from said(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def table() -> list[tuple[str, Any, str, str]]:
    """The rows of the table of sources: key, value as a recipe's text, source, note."""
    lines = SOURCES.read_text(encoding="utf-8").splitlines()
    start = lines.index("| key | value | source | note |") + 2
    rows = []
    for line in lines[start:]:
        match = ROW.fullmatch(line)
        assert match, line
        value = read_yaml(f"v: {match[2]}".encode(), match[1]).data["v"]
        rows.append((match[1], value, match[3], match[4]))
    return rows


def test_every_value_has_its_source_and_nothing_else_has() -> None:
    text = read_yaml(bundled_recipes()[NAME].read_bytes(), NAME).data
    written = {key: value for key, value in said(text) if key not in NAMES}
    rows = table()
    assert {key: value for key, value, *_ in rows} == written
    assert len(rows) == len(written), "a key stands there twice"
    assert [key for key, *_ in rows] == list(written), "in the recipe's order"
    assert {source for _, _, source, _ in rows} == {"document", "published", "ours"}
    assert [key for key, _, source, note in rows if source == "ours" and not note] == []


def test_what_the_document_says_is_what_is_run() -> None:
    """Its tables: hyper-parameters, and how the dies are used."""
    recipe = load_recipe(NAME).recipe
    assert (recipe.steps, recipe.optimizer.lr, recipe.optimizer.schedule) == (100, 1e-6, "constant")
    assert (recipe.data.batch, recipe.rollout.answers, recipe.rollout.temperature) == (512, 16, 0.9)
    assert recipe.actor.kl_loss and recipe.actor.kl_loss.coefficient == 0.001
    assert (recipe.data.prompt_length, recipe.data.response_length) == (1024, 3072)
    parallel, rollout = recipe.actor.parallel, recipe.rollout
    assert (parallel.expert, parallel.pipeline, parallel.tensor, rollout.tensor_parallel) == (32, 8, 1, 2)
    assert recipe.cluster.world == 256 == 2 * int(recipe.env["VLLM_DP_SIZE"])
    assert rollout.engine_arguments["enable_expert_parallel"] is True, "EP256: its experts over all dies"
    offload = recipe.offload
    assert offload.parameters and offload.gradients and offload.reference
    assert recipe.actor.transformer["swap_optimizer"] is True and offload.optimizer is False


def test_its_sizes_agree_with_each_other() -> None:
    recipe = load_recipe(NAME).recipe
    transformer, rollout = recipe.actor.transformer, recipe.rollout
    layers = [count for (count,) in transformer["pipeline_num_transformer_layers"]]
    assert (len(layers), sum(layers)) == (recipe.actor.parallel.pipeline, 61)
    assert layers[0] == transformer["num_layers_in_first_pipeline_stage"]
    assert layers[-1] == transformer["num_layers_in_last_pipeline_stage"]
    assert len(set(layers[1:-1])) == 1 and transformer["recompute_num_layers"] == max(layers)
    assert transformer["seq_length"] == 2048  # the compressed mask's side, whatever the answers' length
    graphs = rollout.engine_arguments["additional_config"]["torchair_graph_config"]
    assert graphs["graph_batch_sizes"] == [rollout.max_sequences] == [512 * 16 // 128]


def test_the_random_one_is_a_benchmark_and_else_the_same() -> None:
    real, random = load_recipe(NAME), load_recipe(RANDOM)
    assert (real.recipe.benchmark, random.recipe.benchmark) == (False, True)
    assert random.recipe.model.load_weights is False and random.recipe.model.checkpoint is None
    assert random.recipe.rollout.ignore_end is True
    before, after = dict(said(real.data)), dict(said(random.data))
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert changed == {
        "name",
        "title",
        "extends",
        "benchmark",
        "steps",
        "model.load_weights",
        "model.checkpoint",
        "rollout.ignore_end",
        "logging.samples",
        "logging.validate_every",
        "logging.validate_first",
    }


def test_the_random_one_is_refused_as_a_training() -> None:
    assert check_recipe(load_recipe(RANDOM), None).errors == []
    errors = check_recipe(load_recipe(RANDOM, ["benchmark=false"]), None).errors
    assert {error.path for error in errors} == {("model", "load_weights"), ("rollout", "ignore_end")}
    assert all(error.where.startswith(f"bundled:{RANDOM}.yaml:") for error in errors)


@pytest.fixture(scope="module")
def code(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    for project, commit, package in PINS:
        archive(upstreams / project / "repo", commit, package, folder)
    return folder


@pytest.mark.upstreams
class TestUpstreams:
    """Against the code it is for."""

    @pytest.mark.parametrize("name", [NAME, RANDOM])
    def test_every_key_has_a_reader(self, code: Path, name: str) -> None:
        found = check_recipe(load_recipe(name), code)
        assert found.errors == []
        assert {note.rule for note in found.notes} == {"key-read-elsewhere"}
        told = {note.path[-1] for note in found.notes if "only MindSpeed reads" in note.message}
        assert told >= {"swap_optimizer", "multi_head_latent_attention", "pipeline_num_transformer_layers"}
        assert all("set both" not in note.message for note in found.notes), "a spelling of two is missing"

    def test_a_misspelt_key_of_the_rollouts_plugin(self, code: Path) -> None:
        """vllm-ascend itself drops what it doesn't know, without a word."""
        graphs = "rollout.engine_arguments.additional_config.torchair_graph_config"
        (error,) = check_recipe(load_recipe(NAME, [f"{graphs}.enable_frozen_parameter=false"]), code).errors
        assert "vllm-ascend reads no enable_frozen_parameter from torchair_graph_config" in error.message

    @pytest.mark.rehearsal
    def test_it_composes(self, code: Path) -> None:
        pytest.importorskip("hydra")
        known = known_keys(code, "ppo_megatron_trainer")
        given = list(flat(settings(load_recipe(NAME).recipe)))
        words = [argument(setting.key, setting.value, setting.key in known) for setting in given]
        found = composed(code / "verl/trainer/config", *words, config="ppo_megatron_trainer")
        assert found.unresolved == {}
        actor, reference = (found.config["actor_rollout_ref"][role]["megatron"] for role in ("actor", "ref"))
        assert actor["override_transformer_config"] == reference["override_transformer_config"]
        assert actor["override_transformer_config"]["pipeline_num_transformer_layers"][-1] == [7]
        sizes = [name for name in actor if name.endswith("_parallel_size")]
        assert {name: actor[name] for name in sizes} == {name: reference[name] for name in sizes}
