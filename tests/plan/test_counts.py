"""Parameters, bytes, disk and time of DeepSeek-V3: published totals and figures worked out by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.memory.memory_parts import Part
from npu_rl.recipes.plan.disk_and_tokens import disk_of
from npu_rl.recipes.sizing.model_config import LatentAttention, ModelConfig, known_shapes
from npu_rl.recipes.sizing.weight_sizes import (
    cache_per_token,
    count_parameters,
    layer,
    routing_biases,
    stage,
    stage_ranges,
    training_share,
)
from tests.plan.helpers import plan
from tests.support import present

V3, DENSE = known_shapes("published")["deepseek-v3"], ModelConfig(2, 64, 8, 8, 16, 128, 256, 512)


def test_the_published_total() -> None:
    """671.03 B = 1.342 TB in bf16, and with the routing biases what the checkpoint's index says."""
    total = sum(count_parameters(V3).values())
    assert total == 671_026_404_352
    assert total + routing_biases(V3) == 671_026_419_200


def test_a_layer_of_one_die() -> None:
    counts = layer(V3, 10, training_share(1, 32, 1))
    assert sum(counts.values()) == 585_318_400
    assert {name: count for name, count in counts.items() if name != "norms"} == {
        "experts": 352_321_536,
        "shared experts": 44_040_192,
        "attention": 187_105_280,
        "router": 1_835_008,
    }


def test_the_stages_of_256_dies() -> None:
    stages = present(plan().memory).stages
    middle = stages[1]
    assert [len(one.layers) for one in stages] == [6, 8, 8, 8, 8, 8, 8, 7]
    assert middle.weights == 2 * 4_682_547_200  # 9.4 GB
    assert middle.gradients == 4 * 4_682_547_200  # 18.7 GB
    experts = 12 * 8 * 352_321_536
    assert experts == 33_822_867_456
    assert middle.states == experts + 12 * (4_682_547_200 - 8 * 352_321_536) // 32  # 34.5 GB
    assert stages[7].weights - 7 * 2 * 585_318_400 - 2 * 7168 == 2 * 129_280 * 7168  # the head, 1.85 GB


def test_the_rollout_of_256_dies() -> None:
    engine = present(present(plan().memory).engine)
    assert sum(engine.counts.values()) == 11_628_600_320
    assert engine.own[Part.ENGINE_WEIGHTS] == 23_257_200_640  # 23.3 GB
    assert cache_per_token(V3, 2) == engine.cache.per_token == 70_272  # 70.3 kB


def test_disk_and_loading() -> None:
    disk = disk_of(V3)
    assert round(disk.bf16 / 1e12, 3) == 1.342
    assert round(present(disk.fp8) / 1e9) == 673
    assert disk.resume == 14 * 671_026_404_352 + 4 * 58 * 256
    loading = present(plan().loading)
    assert loading.once == 2 * 2 * 671_026_404_352
    least, most = loading.seconds(10e9)
    assert least == pytest.approx(268.4, abs=0.1)
    assert most == loading.by_die / 10e9 > least


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"num_hidden_layers": "x"}', "\xff"])
def test_a_config_that_is_none_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, encoding="latin-1")
    (found,) = [one for one in plan(f"model.path={tmp_path}").findings() if one.path[0] == "model"]
    assert (found.rule, found.severity, found.key) == ("model-config", Severity.ERROR, "model.path")
    assert str(tmp_path / "config.json") in found.message


@given(
    tensor=st.sampled_from([1, 2, 4]),
    expert=st.sampled_from([1, 2, 4, 8]),
    dense=st.integers(0, 4),
    cuts=st.lists(st.integers(0, 4), max_size=3),
)
def test_stages_and_shares_add_up(tensor: int, expert: int, dense: int, cuts: list[int]) -> None:
    """Divided parameters of all ranks are the whole; stages are, too, however they are cut."""
    latent = LatentAttention(16, 16, 8, 8, 8)
    shape = replace(DENSE, layers=4, latent=latent, experts=8, expert_width=16, dense=dense)
    bounds = [0, *sorted(cuts), 4]
    ranges = stage_ranges(tuple(end - begin for begin, end in pairwise(bounds) if end > begin))
    all_of_it = count_parameters(shape)
    assert sum((stage(shape, part) for part in ranges), start=Counter[str]()) == all_of_it
    mine = stage(shape, range(4), training_share(tensor, expert, tensor))
    for name, count in all_of_it.items():
        by = {"norms": 1, "router": 1, "experts": tensor * expert}.get(name, tensor)
        assert mine[name] * by == count
