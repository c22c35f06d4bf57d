"""Sleeping and waking by hand: memory is given back, answers are the same after it, and a wrong order is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from npu_rl.runtime import kv_cache_reuse, rollout_offload  # noqa: E402
from tests.runtime import tiny_engine  # noqa: E402
from tests.runtime.tiny_engine import TinyLLM, live_storages, load, weights  # noqa: E402

pytestmark = pytest.mark.rehearsal

PROMPTS = [[1, 2, 3], [4, 5], [9, 9, 9, 1]]


def make(**arguments: Any) -> TinyLLM:
    llm = TinyLLM(**arguments)
    rollout_offload.install(llm)
    return llm


def answers(llm: TinyLLM) -> list[list[float]]:
    return [llm.generate(prompt) for prompt in PROMPTS]


def round_trip(llm: TinyLLM, sent: dict[str, Any]) -> None:
    """What verl's sharding manager does between two rollouts."""
    llm.sleep(level=2)
    llm.wake_up(tags=["weights"])
    wake(llm, sent)


def wake(llm: TinyLLM, sent: dict[str, Any] | None = None) -> None:
    """Load weights, by default the first ones, into an engine whose weights are awake, and wake the cache."""
    load(llm.model, weights(llm.model) if sent is None else sent)
    llm.wake_up(tags=["kv_cache"])


def test_no_storage_of_the_weights_or_the_cache_survives() -> None:
    """Asleep, no tensor in the process has the address of one that was freed: no view, no alias, no derived one."""
    llm = make()
    answers(llm)
    held = [one for one in llm.model.parameters() if one.dim() > 1] + list(llm.runner.kv_caches[0])
    addresses = {one.untyped_storage().data_ptr() for one in held}
    assert llm.model.attention.impl.W_UV.untyped_storage().data_ptr() in addresses
    del held
    llm.sleep(level=2)
    assert not addresses & set(live_storages())


def test_the_same_weights_give_the_same_answers_and_others_others() -> None:
    llm = make()
    first = answers(llm)
    round_trip(llm, weights(llm.model))
    assert answers(llm) == first
    round_trip(llm, weights(llm.model, seed=2))
    others = answers(llm)
    assert all(a != b for a, b in zip(others, first, strict=True))
    for _ in range(3):
        round_trip(llm, weights(llm.model))
        assert answers(llm) == first
    round_trip(llm, weights(llm.model, seed=2))
    assert answers(llm) == others


def test_parameters_stay_the_same_objects_and_what_nobody_sends_stays() -> None:
    """Graphs and loaders hold on to Parameters; no checkpoint has a rotary cache, nor each actor a bias."""
    llm = make()
    experts, output = llm.model.experts, llm.model.output
    rotary, bias = llm.model.attention.rotary, experts.e_score_correction_bias
    experts.w2_weight.data = experts.w2_weight.data.transpose(1, 2).contiguous().transpose(1, 2)
    output.weight.mark = "kept"  # type: ignore[attr-defined]

    def state() -> list[Any]:
        return [(id(one), one.shape, one.stride(), one.dtype) for one in llm.model.parameters()]

    before, place, values = state(), rotary.data_ptr(), [rotary.clone(), bias.detach().clone()]
    for seed in range(3):
        round_trip(llm, weights(llm.model, seed))
        assert state() == before and rotary.data_ptr() == place
        assert torch.equal(rotary, values[0]) and torch.equal(bias, values[1])
    assert output.extra is output.weight and output.weight.mark == "kept"
    for one in (experts.w13_weight, experts.w2_weight, output.weight):
        assert callable(one.weight_loader) and not one.requires_grad  # type: ignore[attr-defined]


def test_level_1_brings_the_weights_back_and_half_awake_it_can_sleep_again() -> None:
    llm = make()
    first = answers(llm)
    rollout_offload.install(llm)  # twice is as once
    weights_awake(llm)
    llm.sleep(level=2)  # after a step that failed while the weights were sent
    assert llm.model.output.weight.numel() == 0
    llm.wake_up(tags=["weights"])
    wake(llm)
    assert answers(llm) == first
    llm.sleep()
    assert all(one.numel() == 0 or one.dim() == 1 for one in llm.model.parameters())
    llm.wake_up()
    assert answers(llm) == first
    llm.sleep(level=1)
    llm.wake_up(tags=["weights"])
    llm.wake_up(tags=["kv_cache"])
    assert answers(llm) == first


def test_waking_all_at_once_waits_for_the_weights() -> None:
    """As verl does where wake_up has no tags; the weights come after it."""
    llm = make()
    llm.sleep(level=2)
    llm.wake_up()
    with pytest.raises(RuntimeError, match=r"weights were not loaded \(still NaN\)"):
        llm.generate([1])
    load(llm.model, weights(llm.model, seed=2))
    other = answers(llm)
    round_trip(llm, weights(llm.model, seed=2))
    assert answers(llm) == other


def asleep(llm: TinyLLM) -> None:
    llm.sleep(level=2)


def weights_awake(llm: TinyLLM) -> None:
    llm.sleep(level=2)
    llm.wake_up(tags=["weights"])


def generate(llm: TinyLLM) -> None:
    llm.generate([1])


WRONG: list[tuple[Callable[[TinyLLM], None] | None, Callable[[TinyLLM], None], str]] = [
    (asleep, generate, "kv_cache, weights"),
    (weights_awake, generate, "asleep: kv_cache"),
    (asleep, lambda llm: llm.llm_engine.step(), "asleep"),
    (asleep, lambda llm: llm.wake_up(tags=["kv_cache"]), "weights are still asleep"),
    (weights_awake, lambda llm: llm.wake_up(tags=["kv_cache"]), r"5 rollout weights .* embed\.weight"),
    (asleep, lambda llm: llm.wake_up(tags=["weight"]), "the tags are"),
    (None, lambda llm: llm.wake_up(tags=["weights", "gpu"]), "the tags are"),
    (None, lambda llm: llm.sleep(level=3), "the levels are"),
]


@pytest.mark.parametrize(("before", "wrong", "message"), WRONG)
def test_a_wrong_order_is_an_error_and_changes_nothing(
    before: Callable[[TinyLLM], None] | None, wrong: Callable[[TinyLLM], None], message: str
) -> None:
    llm = make()
    first = answers(llm)
    if before:
        before(llm)
    state = set(llm.core.model_executor.sleeping_tags)
    with pytest.raises(RuntimeError, match=message):
        wrong(llm)
    assert llm.core.model_executor.sleeping_tags == state
    assert not llm.core.scheduler.waiting, "a request was taken"
    if before is asleep:
        llm.wake_up(tags=["weights"])
    if before:
        wake(llm)
    assert answers(llm) == first


def test_requests_that_are_not_finished_keep_the_engine_awake() -> None:
    llm = make()
    first = llm.generate([1, 2])
    llm.llm_engine.add_request(torch.tensor([1, 2]))
    with pytest.raises(RuntimeError, match="1 of its requests"):
        llm.sleep(level=2)
    with torch.no_grad():
        assert llm.llm_engine.step().tolist() == first
    # vLLM's pool refuses to forget prefixes while a block is held (vllm/v1/core/block_pool.py:302)
    llm.core.scheduler.reset_prefix_cache = lambda: False
    with pytest.raises(RuntimeError, match="some of its requests"):
        llm.sleep(level=2)
    assert llm.model.output.weight.numel()


class Leaving:
    """As verl's sharding manager: its `__exit__` lets the engine sleep."""

    def __init__(self, llm: TinyLLM) -> None:
        self._llm = llm

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._llm.sleep(level=2)


def fail_in(llm: TinyLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave three requests unfinished, by an error in the model."""
    llm.core.scheduler.prefixes.clear()
    for prompt in PROMPTS:
        llm.llm_engine.add_request(torch.tensor(prompt))
    monkeypatch.setattr(llm.model.attention, "forward", lambda *_: 1 / 0)
    with Leaving(llm):
        llm.llm_engine.step()


def test_an_error_while_generating_is_the_one_that_comes_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its requests are aborted, the engine sleeps, and can be used again."""
    llm = make()
    first = answers(llm)
    with monkeypatch.context() as broken, pytest.raises(ZeroDivisionError) as raised:
        fail_in(llm, broken)
    assert raised.value.__context__ is None
    assert [record.message for record in caplog.records] == [
        "The rollout failed: its 3 unfinished requests are aborted."
    ]
    assert llm.core.model_executor.is_sleeping and llm.model.output.weight.numel() == 0
    assert not llm.core.scheduler.get_num_unfinished_requests()
    assert not llm.llm_engine.output_processor.request_states
    llm.wake_up(tags=["weights"])
    wake(llm)
    assert answers(llm) == first


@pytest.mark.parametrize("left_out", sorted(weights(TinyLLM().model)))
def test_a_weight_that_was_not_sent_is_named(left_out: str) -> None:
    """Also if it is one expert's part of a Parameter that was written otherwise."""
    llm = make()
    weights_awake(llm)
    sent = weights(llm.model)
    part = sent.pop(left_out)
    load(llm.model, sent)
    with pytest.raises(
        RuntimeError, match=rf"^1 rollout weights were not loaded .*: {left_out.partition('#')[0]}\."
    ):
        llm.wake_up(tags=["kv_cache"])
    load(llm.model, {left_out: part})
    llm.wake_up(tags=["kv_cache"])
    assert answers(llm) == answers(make())


def test_the_cache_is_made_again_without_warming_up() -> None:
    """Block for block, by the worker alone: a warm-up sets the seed back, so that every step drew the same samples."""
    llm = make()
    before = [one.shape for one in llm.runner.kv_caches[0]]
    for _ in range(2):
        round_trip(llm, weights(llm.model))
        assert [one.shape for one in llm.runner.kv_caches[0]] == before
        assert llm.core.model_executor.warm_ups == 1
        assert llm.model.attention.kv_cache[0] is llm.runner.kv_caches[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda llm: setattr(llm.runner, "lines", 5), "in other shapes"),
        # by the next load they would be written in the wrong layout
        (
            lambda llm: setattr(llm.model.experts, "quant_method", tiny_engine.MovingMethod()),
            r"has moved experts\.w13",
        ),
    ],
)
def test_what_comes_back_otherwise_is_an_error(change: Callable[[TinyLLM], Any], message: str) -> None:
    llm = make()
    change(llm)
    weights_awake(llm)
    with pytest.raises(RuntimeError, match=message):
        wake(llm)


def other_process(llm: TinyLLM) -> None:
    del llm.llm_engine.engine_core.engine_core


def forgot_configs(llm: TinyLLM) -> None:
    del llm.core.__dict__[kv_cache_reuse._KEPT]


REFUSED: list[tuple[Callable[[TinyLLM], Any], str]] = [
    (other_process, "VLLM_ENABLE_V1_MULTIPROCESSING=0"),
    (forgot_configs, "NPU_RL_KV_CACHE_REUSE"),
    (lambda llm: setattr(llm.vllm_config.model_config, "enable_sleep_mode", True), "enable_sleep_mode"),
    (lambda llm: setattr(llm.runner, "dynamic_eplb", True), "dynamic_eplb=False"),
    (lambda llm: setattr(llm.runner, "drafter", llm.runner), "draft model"),
    (lambda llm: setattr(llm.model.experts, "quant_method", tiny_engine.Fp8Method()), "experts is quantized"),
    (lambda llm: setattr(llm.runner, "use_aclgraph", True), "rollout.eager to true"),
    (lambda llm: setattr(llm.runner, "use_cuda_graph", True), "rollout.eager to true"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_an_engine_that_holds_on_to_its_weights_is_refused(
    change: Callable[[TinyLLM], Any], message: str
) -> None:
    llm = TinyLLM()
    change(llm)
    with pytest.raises(RuntimeError, match=message):
        rollout_offload.install(llm)
    assert llm.sleep.__func__ is TinyLLM.sleep  # type: ignore[attr-defined]


def test_switched_off_it_is_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not rollout_offload.sleep_mode(True) and not rollout_offload.sleep_mode(False)
    monkeypatch.setenv("NPU_RL_ROLLOUT_OFFLOAD", "0")
    assert rollout_offload.sleep_mode(True) and not rollout_offload.sleep_mode(False)
    llm = make(enable_sleep_mode=True)
    llm.sleep(level=2)
    assert llm.model.output.weight.numel() and llm.generate([1])
