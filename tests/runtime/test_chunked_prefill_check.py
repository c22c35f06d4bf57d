"""When verl refuses the sizes of a step, and when this does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from npu_rl.runtime.chunked_prefill_check import (
    demand_room,
    demand_room_for_whole_prompts,
    demand_whole_prompts,
    refuses,
)

Tokens = some.integers(1, 5000)


class Config(dict[str, Any]):
    """As verl's RolloutConfig: fields, and `get`."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def config(prompt: int = 1024, chunked: bool = True, **scheduler: Any) -> Config:
    kwargs = {"vllm": {"additional_config": {"ascend_scheduler_config": scheduler}}} if scheduler else {}
    return Config(prompt_length=prompt, enable_chunked_prefill=chunked, engine_kwargs=kwargs)


@given(Tokens, Tokens, some.booleans(), Tokens)
def test_prompts_in_pieces_fit_every_step(step: int, length: int, chunked: bool, prompt: int) -> None:
    assert refuses(config(prompt, chunked), step, length) is False
    assert refuses(config(prompt, chunked, enabled=False), step, length) is False
    assert refuses(config(prompt, chunked, enabled=True, enable_chunked_prefill=True), step, length) is False


@given(Tokens, Tokens, some.booleans())
def test_whole_prompts_have_to_fit_a_step(step: int, prompt: int, chunked: bool) -> None:
    if prompt <= step:
        assert refuses(config(prompt, chunked, enabled=True), step, 5000) is False
        return
    with pytest.raises(ValueError, match=f"at most {step} tokens, but a prompt may have {prompt}"):
        refuses(config(prompt, chunked, enabled=True), step, 5000)


@given(Tokens, Tokens, some.booleans())
def test_off_is_upstream(step: int, length: int, chunked: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPU_RL_CHUNKED_PREFILL_CHECK", "0")
        assert refuses(config(9999, chunked, enabled=True), step, length) is (step < length and chunked)


def engine(blocks: int, *, step: int = 1024, longest: int = 4096, pieces: bool = False) -> Any:
    """vLLM's LLM as far as it is asked: 64 sequences, blocks of 128 tokens."""
    scheduler = SimpleNamespace(enable_chunked_prefill=pieces, max_num_batched_tokens=step, max_num_seqs=64)
    cache = SimpleNamespace(num_gpu_blocks=blocks, block_size=128)
    model = SimpleNamespace(max_model_len=longest)
    made = SimpleNamespace(scheduler_config=scheduler, cache_config=cache, model_config=model)
    return SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=made))


def test_who_can_come_back_may_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts, in one step, or where the recipe speaks to a scheduler that this engine has not."""
    demand_room(config(enabled=True), engine(1, pieces=True))
    demand_room(config(enabled=True), engine(1, step=4096))
    demand_room(config(), engine(1))
    monkeypatch.setenv("NPU_RL_CHUNKED_PREFILL_CHECK", "0")
    demand_room(config(enabled=True), engine(1))


def test_a_rollout_that_always_takes_whole_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl_patches' own: no setting of the recipe is asked, and none that it does not read is named."""
    demand_whole_prompts(config(1024), 1024)
    with pytest.raises(ValueError, match=r"to 1025 or more or shorten data.prompt_length\.$"):
        demand_whole_prompts(config(1025), 1024)
    demand_room_for_whole_prompts(engine(2049))
    demand_room_for_whole_prompts(engine(1, step=4096))
    with pytest.raises(ValueError, match="gets no response") as error:
        demand_room_for_whole_prompts(engine(2048))
    assert "max_sequences" not in str(error.value)
    monkeypatch.setenv("NPU_RL_CHUNKED_PREFILL_CHECK", "0")
    demand_whole_prompts(config(1025), 1024)
    demand_room_for_whole_prompts(engine(2048))
