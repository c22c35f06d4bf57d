"""vLLM 0.9.1's V1 engine on the stand-ins, against transformers in float32: one process for all of this file."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from npu_rl.rehearsal.patch_hooks import read_usage
from tests.standins.vllm import models

torch: Any = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.rehearsal, pytest.mark.pypi]

# In float32 both sides differ only in the order of sums: seen 3e-6.
EXACT = 1e-4


def prompts(*lengths: int, seed: int = 5) -> list[list[int]]:
    numbers = random.Random(seed)
    return [[numbers.randrange(3, 128) for _ in range(length)] for length in lengths]


PROMPTS = prompts(5, 40, 17, 3, 33)
LENGTHS = [12, 20, 9, 16, 4]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "plain": (folder / "plain", models.deepseek(folder / "plain", 1)),
        "other": (folder / "other", models.deepseek(folder / "other", 2)),
        "yarn": (folder / "yarn", models.deepseek(folder / "yarn", 1, yarn=True)),
        "llama": (folder / "llama", models.llama(folder / "llama", 3)),
    }


@pytest.fixture(scope="module")
def ran(
    references: dict[str, tuple[Path, Any]],
    run_engine: Callable[..., list[dict[str, Any]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, Any], Counter[str]]:
    """The answers of all scenarios, and what was stood in for."""

    def scenario(name: str, model: str, **extra: Any) -> dict[str, Any]:
        where = str(references[model][0])
        return {"name": name, "model": where, "prompts": PROMPTS, "max_tokens": LENGTHS, **extra}

    # 16 tokens a step for prompts of up to 40: chunks, in steps that decode for others.
    few = {"max_num_batched_tokens": 16, "enable_chunked_prefill": True, "enable_prefix_caching": False}
    usage = tmp_path_factory.mktemp("usage")
    (answers,) = run_engine(
        [
            scenario("plain", "plain", then="probe"),
            scenario("chunks", "plain", arguments=few),
            # vLLM means to compile then: its own torch versions of the operators run, not the stand-ins'.
            scenario("not eager", "plain", arguments={"enforce_eager": False, "block_size": 128}),
            scenario("yarn", "yarn"),
            scenario("yarn in chunks", "yarn", arguments=few),
            scenario("llama", "llama"),
            scenario("reload", "plain", then="reload", other=str(references["other"][0])),
        ],
        usage=usage,
    )
    return answers, read_usage(usage)[1]


def errors(answers: list[dict[str, Any]], model: Any) -> list[float]:
    """How far each log probability is from the model's; checks that all tokens were asked for."""
    assert [len(answer["tokens"]) for answer in answers] == LENGTHS
    return [
        abs(got - expected)
        for prompt, answer in zip(PROMPTS, answers, strict=True)
        for got, expected in zip(
            answer["log_probs"], models.judged(model, prompt, answer["tokens"])[0], strict=True
        )
    ]


def tokens(answers: list[dict[str, Any]]) -> list[list[int]]:
    return [answer["tokens"] for answer in answers]


@pytest.mark.parametrize(
    ("scenario", "model"),
    [
        ("plain", "plain"),
        ("chunks", "plain"),
        ("not eager", "plain"),
        ("yarn", "yarn"),
        ("yarn in chunks", "yarn"),
        ("llama", "llama"),
    ],
)
def test_the_engine_answers_as_transformers_would(
    scenario: str, model: str, ran: Any, references: dict[str, tuple[Path, Any]]
) -> None:
    answers, reference = ran[0][scenario]["answers"], references[model][1]
    assert [len(answer["tokens"]) for answer in answers] == LENGTHS
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        expected, below_the_best = models.judged(reference, prompt, answer["tokens"])
        assert answer["log_probs"] == pytest.approx(expected, abs=EXACT)
        assert max(below_the_best) < EXACT


def test_log_probabilities_are_at_the_temperature_of_sampling(
    ran: Any, references: dict[str, tuple[Path, Any]]
) -> None:
    """As the actor computes them; vLLM 0.9.1 itself reports those at a temperature of 1."""
    below = []
    for prompt, answer in zip(PROMPTS, ran[0]["plain"]["sampled"], strict=True):
        expected, below_the_best = models.judged(references["plain"][1], prompt, answer["tokens"], 0.7)
        assert answer["log_probs"] == pytest.approx(expected, abs=EXACT)
        below += below_the_best
    assert max(below) > 1  # they were sampled
    assert ran[1]["vllm.log_probs_at_temperature"] > 0
    assert ran[1]["vllm.draws_checked"] > 0


def test_the_comparison_would_notice_another_model(ran: Any, references: dict[str, tuple[Path, Any]]) -> None:
    """The same weights without YaRN, and other weights: beyond the tolerance in the mean, by far."""
    answers = ran[0]["yarn"]["answers"]
    assert mean(errors(answers, references["plain"][1])) > 100 * EXACT
    assert mean(errors(answers, references["other"][1])) > 100 * EXACT


def test_weights_loaded_in_place_moved_and_bound_again(
    ran: Any, references: dict[str, tuple[Path, Any]]
) -> None:
    answers = ran[0]["reload"]
    assert max(errors(answers["answers"], references["plain"][1])) < EXACT
    assert max(errors(answers["loaded"], references["other"][1])) < EXACT
    assert tokens(answers["loaded"]) != tokens(answers["answers"])
    assert answers["moved"] == answers["loaded"]
    assert answers["bound_again"] == answers["answers"]


def test_it_is_vllms_v1_engine_on_its_cpu_platform_without_ascends(ran: Any) -> None:
    told = ran[0]["plain"]
    assert told["is_cpu"] is True
    assert (told["engine"], told["worker"]) == ("vllm.v1.engine.llm_engine", "vllm.v1.worker.cpu_worker")
    assert told["plugins"] == []


def test_an_operator_that_there_is_none_of_says_its_name(ran: Any) -> None:
    told = ran[0]["plain"]
    assert told["shared memory"] is False
    for key, name in (
        ("compiled", "torch.ops._C.gptq_shuffle"),
        ("through vllm", "torch.ops._C_cache_ops.convert_fp8"),
        ("extension", "intel_extension_for_pytorch.llm.modules.GatedMLPMOE"),
    ):
        kind, text = told[key]
        assert kind == "NoCpuVersion"
        assert text.startswith(f"{name} ")


def test_what_was_stood_in_for_is_counted(ran: Any) -> None:
    assert set(ran[1]) == {
        "vllm.silu_and_mul",
        "vllm.log_probs_at_temperature",
        "vllm.noise_recorded",
        "vllm.draws_checked",
        "vllm.rms_norm",
        "vllm.fused_add_rms_norm",
        "vllm.rotary_embedding",
        "vllm.experts",
        "vllm.paged.reshape_and_cache",
        "vllm.paged.flash_attn_varlen_func",
        "vllm.paged.single_query_cached_kv_attention",
    }
