"""A layout is formed at its real size and tried on real ranks, with the tree's own code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from npu_rl.common.python_roots import INJECTED, NPU, REHEARSAL
from npu_rl.recipes.sizing.parallelism import ModelDivisors, Parallelism, RolloutSizes, TrainSizes
from npu_rl.rehearsal.child_process import TrainingChild
from npu_rl.rehearsal.layout_report import LayoutReport
from npu_rl.rehearsal.level_layout import rehearse_layout

pytestmark = [
    pytest.mark.rehearsal,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]
torch = pytest.importorskip("torch")

DEEPSEEK = ModelDivisors(61, 128, 128, 256, True, (7, 8, 8, 8, 8, 8, 7, 7))
SMALL = ModelDivisors(layers=8, heads=4, kv_heads=4, experts=8, latent_attention=True)
MINDSPEED = "7ff818c4"


@pytest.fixture
def child(code_tree: Path, python: Path, environment: Mapping[str, str]) -> TrainingChild:
    return TrainingChild(code_tree, python, environment)


def failures(report: LayoutReport) -> dict[str, str]:
    return {check.name: check.why for check in report.checks if not check.ok}


def figures(report: LayoutReport, name: str) -> Mapping[str, object]:
    return next(check.figures for check in report.checks if check.name == name)


def test_256_ranks_of_the_real_tree(child: TrainingChild) -> None:
    train = TrainSizes(tensor=1, pipeline=8, expert=32, expert_tensor=1)
    layout = Parallelism(256, "megatron", train, DEEPSEEK, RolloutSizes(2, 128))
    told: list[str] = []
    report = rehearse_layout(layout, child, told.append)
    assert failures(report) == {}
    assert told == [
        "forming the groups of 256 ranks, as each rank in turn",
        "training a tiny model over 4 ranks",
    ]
    assert figures(report, "training groups: pipeline") == {"size": 8, "groups": 32}
    assert figures(report, "training groups: expert") == {"size": 32, "groups": 8}
    assert figures(report, "training groups: expert_data") == {"size": 1, "groups": 256}
    assert figures(report, "training groups: embedding") == {"ranks with an embedding": 64}
    built = figures(report, "tiny model (pipeline 2, expert 2): built")
    assert (built["ranks"], built["layers"], built["experts"]) == (4, [2], [2])
    # vLLM either imports here and its groups are right, or it is said why they were not formed.
    formed = any(check.name == "rollout groups: rollout_expert" for check in report.checks)
    missing = [item.why for item in report.not_rehearsed if item.what == "rollout groups"]
    assert formed or missing[0].startswith("needs ")
    assert json.loads(json.dumps(report.to_json()))["ok"] is True


def test_every_dimension_at_once_on_eight_ranks(child: TrainingChild) -> None:
    train = TrainSizes(tensor=2, pipeline=2, expert=2, expert_tensor=2)
    report = rehearse_layout(Parallelism(8, "megatron", train, SMALL), child, print)
    assert failures(report) == {}
    name = "tiny model (tensor 2, pipeline 2, expert 2, expert_tensor 2): backward"
    assert figures(report, name) == {"ranks with all gradients": 8}


def test_sizes_that_do_not_fit_are_not_tried(child: TrainingChild) -> None:
    layout = Parallelism(250, "megatron", TrainSizes(pipeline=8, expert=48), DEEPSEEK)
    report = rehearse_layout(layout, child, pytest.fail)
    assert set(failures(report)) == {
        "model-parallel-divides-world",
        "expert-parallel-divides-world",
        "expert-parallel-divides-experts",
    }
    assert failures(report)["model-parallel-divides-world"] == "250 ranks can't be split evenly 8 ways"
    assert [item.what for item in report.not_rehearsed] == ["groups and tiny model"]


# Faults of a tree: a file of megatron/core, its line, what stands there instead, and the check that tells and how.
BROKEN = [
    (
        "parallel_state.py",
        "return _PIPELINE_GLOBAL_RANKS[(rank_in_pipeline + 1) % world_size]",
        "return _PIPELINE_GLOBAL_RANKS[0]",
        "training groups: pipeline neighbours",
        "rank 0 sends to 0",
    ),
    (
        "parallel_state.py",
        "        return [pp_ranks[0], pp_ranks[-1]]",
        "        return [pp_ranks[0]]",
        "training groups: embedding",
        "rank 0 shares it with",
    ),
    (
        "transformer/multi_latent_attention.py",
        "        self.query_projection_size = ",
        "        raise ValueError('not for two stages')\n        self.query_projection_size = ",
        "tiny model (pipeline 2)",
        "ValueError: not for two stages",
    ),
]


def test_a_tree_that_is_broken_is_seen(tmp_path: Path, child: TrainingChild) -> None:
    """Each fault by a check of its own; the others pass."""
    shutil.copytree(child.code / "megatron", tmp_path / "megatron")
    for file, old, new, *_ in BROKEN:
        place = tmp_path / "megatron" / "core" / file
        text = place.read_text()
        assert old in text
        place.write_text(text.replace(old, new))
    layout = Parallelism(4, "megatron", TrainSizes(pipeline=2), replace(SMALL, experts=0))
    report = rehearse_layout(layout, replace(child, code=tmp_path), print)
    found = failures(report)
    assert found.keys() == {name for *_, name, _ in BROKEN}
    for *_, name, why in BROKEN:
        assert why in found[name]


def test_fsdp(child: TrainingChild) -> None:
    """Its shards by verl's own mesh, and nothing else: its workers have the others in line."""
    pytest.importorskip("ray")
    layout = Parallelism(16, "fsdp", TrainSizes(shard=4, sequence=2), SMALL, RolloutSizes(tensor=2))
    report = rehearse_layout(layout, child, print)
    assert failures(report) == {}
    assert figures(report, "training groups: fsdp") == {"size": 4, "groups": 4}
    assert {"training groups: sequence", "tiny model"} <= {item.what for item in report.not_rehearsed}


@pytest.mark.upstreams
@pytest.mark.parametrize("tensor", [1, 2])
def test_mindspeed_refuses_latent_attention_over_tensor_ranks(
    tmp_path: Path, child: TrainingChild, tensor: int
) -> None:
    upstreams = os.environ.get("NPU_RL_UPSTREAMS")
    if not upstreams:
        pytest.skip("NPU_RL_UPSTREAMS names no upstreams")
    pytest.importorskip("einops")
    shutil.copytree(child.code / "megatron", tmp_path / "megatron")
    repository = Path(upstreams) / "Ascend+MindSpeed" / "repo"
    packed = subprocess.run(
        ["git", "-C", repository, "archive", MINDSPEED, "mindspeed"], capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", tmp_path], input=packed.stdout, check=True)
    paths = os.pathsep.join([str(INJECTED), str(REHEARSAL), str(NPU), os.environ.get("PYTHONPATH", "")])
    keys = {"multi_latent_attention": True, "multi_head_latent_attention": True}
    train = TrainSizes(tensor=tensor, pipeline=2, expert=2, expert_tensor=1)
    layout = Parallelism(8, "megatron", train, SMALL, transformer=keys)
    environment = {**child.environment, "PYTHONPATH": paths}
    report = rehearse_layout(layout, replace(child, code=tmp_path, environment=environment), print)
    assert all(check.ok for check in report.checks if "groups" in check.name)
    if tensor == 1:
        assert failures(report) == {}
    else:
        (why,) = failures(report).values()
        assert "MLA is not supported with Tensor Parallelism yet" in why
