"""The flagship's recipe: every value has a source, and its own tree reads every key."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from typing import Any, Optional

import pytest

from npu_rl.common.bundled import bundled_manifests, data_root
from npu_rl.common.yaml_documents.document_kind import MANIFEST
from npu_rl.common.yaml_documents.yaml_reader import read_yaml
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.trainer_command import argument
from npu_rl.recipes.recipe.trainer_settings import flatten_mappings, list_settings
from tests.code_trees import R1_ZERO_PINS, check_recipe, known_keys, unpatched
from tests.recipes.source_tables import NAMES, changed, said, sources, table
from tests.training.test_hydra_compose import composed

NAME, RANDOM = "deepseek-r1-zero-256die", "deepseek-r1-zero-256die-random-init"
PUBLISHED = "deepseek-r1-zero-256die-published"
CANN = "deepseek-v3-cann-256die"
SAMPLERS = {"apply_top_k_top_p", "apply_top_k_only"}
# Patches for what both recipes do, each in its own way.
NOT_IN_THE_COMPARISON = {
    "deepscaler-reward",  # the recipe names the function that it would call
    "rollout-engine-args",
    "rollout-compile",
    "repatch-required",
    "kv-cache-reuse",
}


def rows_under(name: str, heading: str) -> list[str]:
    """The rows of the table with this heading in the sources of a recipe."""
    lines = sources(name).splitlines()
    rest = lines[lines.index(heading) + 2 :]
    return list(itertools.takewhile(lambda line: line.startswith("|"), rest))


@pytest.mark.parametrize(
    ("name", "source", "manifest"),
    [(NAME, "published", "deepseek-r1-zero"), (CANN, "script", "deepseek-v3-cann")],
)
def test_every_difference_from_the_published_recipe_has_its_reason(
    name: str, source: str, manifest: str
) -> None:
    """And each patch of the tree that is on has its row, by name."""
    rows = [
        [cell.strip() for cell in row.strip("|").split(" | ")]
        for row in rows_under(name, f"| what | {source} | here | why |")
    ]
    assert [row for row in rows if len(row) != 4 or not all(row)] == []
    assert len({row[0] for row in rows}) == len(rows)
    data = read_yaml(bundled_manifests()[manifest].read_bytes(), "manifest", MANIFEST).data
    sets = [one for component in data["components"].values() for one in component.get("patches", ())]
    series = [path for patchset in sets for path in (data_root() / "patchsets" / patchset).glob("*.patch")]
    patches = {path.stem.partition("-")[2] for path in series}
    named = {name for row in rows for name in re.findall(r"patch ([a-z0-9]+(?:-[a-z0-9]+)+)", row[3])}
    assert named <= patches
    assert patches - named <= NOT_IN_THE_COMPARISON


def test_the_published_one_is_the_documents_but_for_what_verl_published() -> None:
    real, published = load_recipe(NAME), load_recipe(PUBLISHED)
    before, after = dict(said(real.data)), dict(said(published.data))
    others = changed(NAME, PUBLISHED) - NAMES
    assert {key: after[key] for key in others} == {key: value for key, value, *_ in table(PUBLISHED)}
    assert before.keys() <= after.keys()
    assert published.recipe.reward.function == real.recipe.reward.function
    assert published.recipe.reward.manager == "batch"


def test_the_random_one_is_refused_as_a_training() -> None:
    assert check_recipe(load_recipe(RANDOM), None).errors == []
    errors = check_recipe(load_recipe(RANDOM, ["benchmark=false"]), None).errors
    assert {error.path for error in errors} == {("model", "load_weights"), ("rollout", "ignore_end")}
    assert all(error.where.startswith(f"bundled:{RANDOM}.yaml:") for error in errors)


@pytest.fixture(scope="module")
def code(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpatched(upstreams, R1_ZERO_PINS, tmp_path_factory.mktemp("code"))


@pytest.mark.upstreams
class TestUpstreams:
    """Against the code it is for."""

    @pytest.mark.parametrize("name", [NAME, RANDOM, PUBLISHED])
    def test_every_key_has_a_reader(self, code: Path, name: str) -> None:
        found = check_recipe(load_recipe(name), code)
        assert found.errors == found.notes == []

    def test_a_misspelt_key_of_the_rollouts_plugin(self, code: Path) -> None:
        """vllm-ascend itself drops what it doesn't know, without a word."""
        graphs = "rollout.engine_arguments.additional_config.torchair_graph_config"
        (error,) = check_recipe(load_recipe(NAME, [f"{graphs}.enable_frozen_parameter=false"]), code).errors
        assert "vllm-ascend has no enable_frozen_parameter" in error.message

    @pytest.mark.rehearsal
    def test_what_the_sampler_left_out_would_sort(self, code: Path) -> None:
        """The premise, by both functions themselves: the same logits come back, and only one of them sorts."""
        torch = pytest.importorskip("torch")
        files = (
            "vllm_ascend/patch/worker/patch_common/patch_sampler.py",
            "vllm/v1/sample/ops/topk_topp_sampler.py",
        )
        sorts = []
        for file in files:
            tree = ast.parse((code / file).read_text(encoding="utf-8"))
            functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
            wanted = [node for node in functions if node.name in SAMPLERS]
            names: dict[str, Any] = {"torch": torch, "Optional": Optional}
            exec(compile(ast.Module(wanted, []), file, "exec"), names)
            logits = torch.randn(4, 97)
            with torch.profiler.profile() as profile:
                assert torch.equal(names["apply_top_k_top_p"](logits.clone(), None, None), logits)
            sorts.append(sum(event.name == "aten::sort" for event in profile.events()))
        assert sorts[0] >= 1 and sorts[1] == 0

    @pytest.mark.rehearsal
    def test_it_composes(self, code: Path) -> None:
        pytest.importorskip("hydra")
        known = known_keys(code, "ppo_megatron_trainer")
        given = list(flatten_mappings(list_settings(load_recipe(NAME).recipe)))
        words = [argument(setting.key, setting.value, setting.key in known) for setting in given]
        found = composed(code / "verl/trainer/config", *words, config="ppo_megatron_trainer")
        actor, reference = (found["actor_rollout_ref"][role]["megatron"] for role in ("actor", "ref"))
        assert actor["override_transformer_config"] == reference["override_transformer_config"]
        assert actor["override_transformer_config"]["pipeline_num_transformer_layers"][-1] == [7]
        sizes = [name for name in actor if name.endswith("_parallel_size")]
        assert {name: actor[name] for name in sizes} == {name: reference[name] for name in sizes}
