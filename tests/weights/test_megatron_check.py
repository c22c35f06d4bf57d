"""`weights check` of Megatron's checkpoints, whole and damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.checkpoints.checkpoint_of_recipe import CheckpointOfRecipe
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.weights.checkpoints.check_weights import check_weights
from npu_rl.weights.checkpoints.checkpoint_findings import CheckedFolder
from npu_rl.weights.checkpoints.output_folder import NOTE
from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout
from npu_rl.weights.tensors.npu_rl_tensors.layouts.placements import LegacyRanks
from tests.tensors import megatron_checkpoints as tiny
from tests.weights.inline_workers import InlineWorkers, convert

pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    tiny.write_hf(folder / "hf", tiny.DEEPSEEK, tiny.hf_tensors(tiny.DEEPSEEK))
    legacy = OutputLayout("legacy", LegacyRanks(2, (2, 2), 2, experts_over_tensor=True))
    convert(folder / "hf", folder / "dist")
    convert(folder / "hf", folder / "legacy", legacy)
    return folder


def checked(folder: Path, recipe: str | None = None, *overrides: str) -> CheckedFolder:
    wanted = CheckpointOfRecipe(load_recipe(recipe, overrides)) if recipe else None
    return check_weights(folder, InlineWorkers(), wanted)


def errors(report: CheckedFolder) -> list[tuple[str, str]]:
    return [(found.rule, found.message) for found in report.findings if found.severity is Severity.ERROR]


@pytest.mark.parametrize("name", ["dist", "legacy"])
def test_a_whole_one_is_named_and_no_error(made: Path, name: str) -> None:
    report = checked(made / name)
    assert report.ok and [found.rule for found in report.findings] == ["weights-megatron"]
    assert report.format == ("torch_dist" if name == "dist" else "legacy")
    assert set(report.dtypes) == {"BF16", "F32"} and report.bytes > 1000
    if name == "legacy":
        assert report.shards == 8


def damaged(made: Path, name: str, target: Path, damage: str) -> Path:
    shutil.copytree(made / name, target)
    parts = sorted(target.glob("*.distcp")) or sorted(target.rglob("*.pt"))
    if damage.startswith("cut"):  # the last of torch_dist has no tensors, but the extra states
        part = parts[-1 if "states" in damage else 0]
        part.write_bytes(part.read_bytes()[:-900])
    elif damage.startswith("missing"):
        part = parts[-1 if "states" in damage else 1]
        (part if name == "dist" else part.parent).rename(target.parent / "away")
    elif damage == "metadata":
        (target / ".metadata").unlink()
    else:
        (target / ".metadata").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    return target


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(("dist", damage) for damage in ("cut", "cut-states", "missing-states", "metadata", "hostile")),
        *(("legacy", damage) for damage in ("cut", "missing")),
    ],
)
def test_a_damaged_one_is_an_error(made: Path, tmp_path: Path, name: str, damage: str) -> None:
    folder = damaged(made, name, tmp_path / "out", damage)
    (folder / NOTE).unlink()  # which has the sizes
    found = errors(checked(folder))
    assert found and {rule for rule, _ in found} == {"weights-files"}


def test_the_recipe_has_to_load_its_format_and_ranks(made: Path) -> None:
    cann = ("actor.parallel={tensor: 2, pipeline: 2, expert: 2}",)
    layers = "overrides.actor_rollout_ref.actor.megatron.pipeline_parallel_num_layer_list=[2,2]"
    assert not errors(checked(made / "dist", "deepseek-r1-zero-256die"))
    assert not errors(checked(made / "legacy", "deepseek-v3-cann-256die", *cann, layers))
    for name, recipe, message in (
        ("legacy", "deepseek-r1-zero-256die", "the trainer of deepseek-r1-zero-256die loads torch_dist"),
        ("dist", "deepseek-v3-cann-256die", "the trainer of deepseek-v3-cann-256die loads legacy"),
        (
            "legacy",
            "deepseek-v3-cann-256die",
            "2 x 2 x 2 = 8 ranks, and deepseek-v3-cann-256die needs 4 x 8 x 8 = 256 (TP4 PP8 EP8)",
        ),
        ("dist", "verl-npu-dapo-qwen3-30b", "loads Hugging Face's format"),
    ):
        ((rule, said),) = errors(checked(made / name, recipe))
        assert rule == "weights-format" and message in said
