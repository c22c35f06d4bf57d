"""The recipe's keywords over the trainer's: what reaches an engine, and what stays as it was."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from npu_rl.runtime.rollout_engine_args import engine, plain

Json = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(max_size=5),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


class Section(Mapping[str, Any]):
    """A mapping that is no dict, as OmegaConf's."""

    def __init__(self, inner: Mapping[str, Any]) -> None:
        self._inner = {key: odd(value) for key, value in inner.items()}

    def __getitem__(self, key: str) -> Any:
        return self._inner[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)


class Row(Sequence[Any]):
    """A sequence that is no list."""

    def __init__(self, inner: Sequence[Any]) -> None:
        self._inner = [odd(value) for value in inner]

    def __getitem__(self, place: Any) -> Any:
        return self._inner[place]

    def __len__(self) -> int:
        return len(self._inner)


def odd(value: Any) -> Any:
    if isinstance(value, dict):
        return Section(value)
    return Row(value) if isinstance(value, list) else value


def call(llm: Any, said: dict[str, Any], **fixed: Any) -> Any:
    """As upstream writes it: the dictionary is read after the engine is asked for."""
    return engine(llm, said)(**fixed, **said)


@given(some.dictionaries(some.text(max_size=5), some.lists(Json, max_size=3)))
@pytest.mark.second
def test_plain_is_a_copy_in_dicts_and_lists(value: dict[str, Any]) -> None:
    before = copy.deepcopy(value)
    assert plain(odd(value)) == value
    for row in plain(value).values():
        row.append("another")
    assert value == before


@given(
    some.dictionaries(some.sampled_from("abcdef"), Json), some.dictionaries(some.sampled_from("uvwxyz"), Json)
)
@pytest.mark.second
def test_both_sides_arrive(said: dict[str, Any], fixed: dict[str, Any]) -> None:
    assert call(dict, dict(said), **fixed) == {**fixed, **said}


def test_the_recipe_decides_about_prefixes_and_their_default_is_none() -> None:
    assert call(dict, {}, enable_prefix_caching=True) == {"enable_prefix_caching": False}
    assert call(dict, {"enable_prefix_caching": True}, enable_prefix_caching=True) == {
        "enable_prefix_caching": True
    }
    assert call(dict, {}) == {}


@pytest.mark.parametrize(
    ("key", "fixed", "place"),
    [
        ("model", True, "model.path"),
        ("dtype", True, "rollout.dtype"),
        ("enable_lora", True, "model.lora_rank"),
        ("enable_sleep_mode", True, "rollout.free_cache"),
        ("data_parallel_size", False, "VLLM_DP_SIZE"),
    ],
)
def test_what_belongs_elsewhere(key: str, fixed: bool, place: str) -> None:
    with pytest.raises(ValueError, match=rf"rollout\.engine_arguments\.{key}=1: .*{place}"):
        call(dict, {key: 1}, **({key: 2} if fixed else {}))


def test_off_is_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_RL_ROLLOUT_ENGINE_ARGS", "0")
    inner = Section({"a": 1})
    said = {"x": inner}
    assert engine(dict, said) is dict
    assert call(dict, said, enable_prefix_caching=True) == {"enable_prefix_caching": True, "x": inner}
    assert said == {"x": inner}
    with pytest.raises(TypeError, match="multiple values for keyword argument 'seed'"):
        call(dict, {"seed": 1}, seed=2)
