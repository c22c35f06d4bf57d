"""The plan's training memory against what verl's nightly runs on NPUs measured (docs/plan.md has the table).

Baselines: verl-project/verl-ascend-recipe@2a3edec, baseline/*/nightly_log: `actor/perf/max_memory_allocated_gb`, the
peak of torch's tensors in a training process, in GiB. HCCL's buffers and CANN's context are not in it, nor is the
engine, which is another process there.
"""

from __future__ import annotations

import pytest

from npu_rl.recipes.memory.measured_runs import MEASURED as RUNS
from npu_rl.recipes.memory.memory_by_phase import Memory, Phase, PhaseName
from npu_rl.recipes.memory.memory_parts import Part
from npu_rl.recipes.plan.memory_report import RANGE
from npu_rl.recipes.plan.plan import plan_of
from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.plan.helpers import HERE
from tests.support import ROOT, present

PAGE = (ROOT / "docs" / "plan.md").read_text("utf-8")
NAMES = (
    *("gspo-qwen3-30b", "gspo-qwen3-8b-fsdp2", "grpo-qwen3-30b-sglang", "dapo-moonlight-16b"),
    "grpo-qwen3-30b-router-replay",
)
MEASURED = {name: run.gib for name, run in zip(NAMES, RUNS, strict=True)}
# 32.06 tokens a second and die x 16 dies x 90.4 s / 128 sequences = 362 tokens on average
AS_SHORT_AS_MEASURED = ("data.prompt_length=181", "data.response_length=181")


def memory_of(name: str, *changes: str) -> Memory:
    return present(plan_of(load_recipe(str(HERE / "measured" / f"{name}.yaml"), changes)).memory)


def of_training(memory: Memory) -> list[Phase]:
    phases = (PhaseName.OLD_LOG_PROB, PhaseName.REFERENCE, PhaseName.UPDATE)
    return [one for one in map(memory.worst, phases) if one]


def peak(name: str, *changes: str) -> float:
    """GiB of torch's tensors at the fullest moment of training."""
    outside = (Part.HCCL, Part.CONTEXT)
    parts = (phase.parts.items() for phase in of_training(memory_of(name, *changes)))
    return max(sum(size for part, size in one if part not in outside) for one in parts) / 2**30


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        ("gspo-qwen3-30b", (), 25.7),
        ("gspo-qwen3-30b", AS_SHORT_AS_MEASURED, -3.5),
        ("grpo-qwen3-30b-sglang", (), -1.6),
        ("dapo-moonlight-16b", (), -5.9),
        ("gspo-qwen3-8b-fsdp2", (), -0.1),
        ("grpo-qwen3-30b-router-replay", (), 6.3),
    ],
)
def test_the_error_is_as_documented(name: str, changes: tuple[str, ...], error: float) -> None:
    assert (peak(name, *changes) / MEASURED[name] - 1) * 100 == pytest.approx(error, abs=0.1)
    assert f"{peak(name, *changes):.1f} GiB" in PAGE and f"{error:+.1f} %" in PAGE


def test_plan_prints_the_errors_of_its_upper_end() -> None:
    """And no measured peak is below the lower end of its range."""
    printed = " ".join(RANGE)
    for (name, measured), run in zip(MEASURED.items(), RUNS, strict=True):
        assert (peak(name) / measured - 1) * 100 == pytest.approx(run.error, abs=0.1)
        assert f"{run.error:+.1f} %" in printed
        memory = memory_of(name)
        assert max(one.low for one in of_training(memory)) < measured * 2**30
        for one in memory.phases:
            assert one.low + one.by_lengths + one.other_estimates == one.total
            assert 0 < one.low <= one.total
