"""Which sequences may start in a KV cache, and which caches are refused. On the real scheduler:
patchsets/witnesses/lost-sequences.py."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from npu_rl.runtime.kv_cache_room import demand, has_room, keeps


def scheduler(blocks: int, running: list[Any], *, at_once: int = 64, longest: int = 4096) -> Any:
    """vllm-ascend's, as far as it is asked: blocks of 128 tokens."""
    return SimpleNamespace(
        kv_cache_manager=SimpleNamespace(block_pool=SimpleNamespace(num_gpu_blocks=blocks)),
        kv_cache_config=SimpleNamespace(kv_cache_groups=["all layers"]),
        max_num_running_reqs=at_once,
        max_model_len=longest,
        num_lookahead_tokens=0,
        block_size=128,
        running=running,
    )


def request(prompt: int, response: int = 3072) -> Any:
    return SimpleNamespace(num_prompt_tokens=prompt, max_tokens=response)


@pytest.mark.parametrize(
    ("blocks", "running", "starts"),
    [
        (2049, [(1024, 3072)] * 63, True),  # 64 x 32 blocks, and vLLM's null block
        (2048, [(1024, 3072)] * 63, False),
        (2048, [(1024, 3072)] * 62, True),
        (2048, [(1024, 3072)] * 62 + [(1024, 2944)], True),  # one of them ends a block earlier
        (2048, [(1024, 3072)] * 62 + [(1024, 2945)], False),
        (2048, [(4000, 9999)] * 62, True),  # never longer than the model's length
        (10, [], True),  # alone: nothing that ends could make more room
        (10, [(1, 1)], False),
    ],
)
def test_a_sequence_starts_if_all_fit_at_their_full_length(
    blocks: int, running: list[tuple[int, int]], starts: bool
) -> None:
    assert has_room(scheduler(blocks, [request(*one) for one in running]), request(1024)) is starts


Lengths = some.tuples(some.integers(1, 1024), some.integers(1, 4096))


@given(some.integers(2, 400), some.lists(Lengths, max_size=40))
def test_what_was_started_never_needs_more_than_there_is(
    blocks: int, requests: list[tuple[int, int]]
) -> None:
    running: list[Any] = []
    at = scheduler(blocks, running)
    for one in requests:
        if has_room(at, request(*one)):
            running.append(request(*one))
    needed = sum(-(-min(one.num_prompt_tokens + one.max_tokens, 4096) // 128) for one in running)
    assert len(running) <= 1 or needed <= blocks - 1


def settings(step: int = 1024, longest: int = 4096, chunked: bool = False) -> Any:
    return SimpleNamespace(
        max_num_batched_tokens=step, max_model_len=longest, chunked_prefill_enabled=chunked
    )


def test_room_is_kept_where_a_preempted_sequence_could_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert keeps(settings()) and keeps(settings(step=4095))
    assert not keeps(settings(step=4096)) and not keeps(settings(chunked=True))
    monkeypatch.setenv("NPU_RL_KV_CACHE_ROOM", "0")
    assert not keeps(settings())


def engine(blocks: int, keeps_room: bool | None = None, *, longest: int = 4096, sequences: int = 64) -> Any:
    """vLLM's LLM as far as it is asked. keeps_room: None is a scheduler without the patch."""
    made = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=sequences),
        cache_config=SimpleNamespace(num_gpu_blocks=blocks, block_size=128),
        model_config=SimpleNamespace(max_model_len=longest),
    )
    asked = SimpleNamespace() if keeps_room is None else SimpleNamespace(keeps_room=keeps_room)
    core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=asked))
    return SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=made, engine_core=core))


@pytest.mark.parametrize("keeps_room", [None, False, True])
def test_all_sequences_at_their_full_length_have_room(
    keeps_room: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    demand(engine(2049, keeps_room))
    demand(engine(64 * 33 + 1, keeps_room, longest=4097))  # a block for a single token more
    assert not caplog.records


@pytest.mark.parametrize("keeps_room", [None, False])
def test_a_cache_one_block_too_short_is_refused(keeps_room: bool | None) -> None:
    said = (
        r"has 2047 blocks of 128 tokens for use, and 64 sequences of 4096 tokens may need 2048\. A sequence"
    )
    with pytest.raises(ValueError, match=said) as raised:
        demand(engine(2048, keeps_room))
    for way in (
        "kv-cache-room",
        "rollout.max_sequences to 63",
        "rollout.memory_share",
        "batched_tokens to 4096",
    ):
        assert way in str(raised.value)
    demand(engine(2048, keeps_room, sequences=63))  # the first way


def test_where_room_is_kept_they_wait(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        demand(engine(1025, True))
    (record,) = caplog.records
    for said in ("1024 blocks", "may need 2048", "about 32 run at a time", "no response is lost"):
        assert said in record.getMessage()


@pytest.mark.parametrize("keeps_room", [None, True])
def test_one_sequence_has_to_fit(keeps_room: bool | None) -> None:
    demand(engine(33, True))
    with pytest.raises(ValueError, match="not even one fits"):
        demand(engine(32, keeps_room))
