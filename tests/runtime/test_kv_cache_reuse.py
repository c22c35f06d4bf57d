"""The first configurations of the KV cache are kept, whole, and given again whatever was profiled since."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.runtime.kv_cache_reuse import first, kept


@dataclass
class Group:
    layer_names: list[str]


@dataclass
class Config:
    """The fields of vllm.v1.kv_cache_interface.KVCacheConfig that are asked for."""

    num_blocks: int
    kv_cache_groups: list[Group]


def configs(blocks: int, *workers: tuple[str, ...]) -> list[Config]:
    return [Config(blocks, [Group(list(names))]) for names in workers or (("a", "b"),)]


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=5), st.integers(1, 3))
def test_the_first_is_given_each_time(blocks: list[int], workers: int) -> None:
    core = SimpleNamespace()
    names = [(f"layer{n}", "x") for n in range(workers)]
    given_first = configs(blocks[0], *names)
    assert first(core, given_first) is given_first
    for number in blocks[1:]:
        assert first(core, configs(number, *names)) == configs(blocks[0], *names)
    assert kept(core) == configs(blocks[0], *names)


def test_nobody_can_change_what_is_kept() -> None:
    """vLLM's runner writes the names of sharing layers into the groups (vllm/v1/worker/gpu_model_runner.py:2225)."""
    core = SimpleNamespace()
    for _ in range(3):
        for config in [*first(core, configs(7)), *(kept(core) or [])]:
            config.num_blocks += 1
            config.kv_cache_groups[0].layer_names.append("shared")
        assert kept(core) == configs(7)


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ([("a", "c")], r"1 worker\(s\) and 2 layers, now for 1 and 2 \(gone: b; new: c\)"),
        ([("a",)], "gone: b; new: none"),
        ([("a", "b"), ("a", "b")], "now for 2 and 4"),
        ([("c", "d", "e", "f", "g")], r"gone: a, b; new: c, d, e …"),
    ],
)
def test_other_layers_are_an_error(new: list[tuple[str, ...]], message: str) -> None:
    core = SimpleNamespace()
    first(core, configs(5))
    with pytest.raises(RuntimeError, match=message):
        first(core, configs(5, *new))
    assert kept(core) == configs(5)


def test_switched_off_it_is_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_RL_KV_CACHE_REUSE", "0")
    core = SimpleNamespace()
    for number in (1, 2):
        new = configs(number)
        assert first(core, new) is new
    assert kept(core) is None
