"""Parameter counts against the real thing, built on torch's meta device: no memory, every shape."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.python_roots import REHEARSAL
from npu_rl.recipes.memory.megatron_memory import WEIGHT
from npu_rl.recipes.sizing.model_config import known_shapes
from npu_rl.recipes.sizing.weight_sizes import (
    count_parameters,
    layer,
    routing_biases,
    stage,
    stage_ranges,
    training_share,
)
from tests.plan.helpers import config, plan
from tests.support import byte_code, ok, present, run_program

pytestmark = [pytest.mark.rehearsal, pytest.mark.pypi]  # Megatron-core 0.12.1 is the quickstart's
torch = pytest.importorskip("torch")

V3 = known_shapes("published")["deepseek-v3"]


def parameters(module: Any) -> int:
    assert all(weight.is_meta for weight in module.parameters())
    return sum(weight.numel() for weight in module.parameters())


def test_the_layers_of_transformers_deepseek_v3() -> None:
    """Each kind of layer, and all that is not in one, at the real sizes; the whole is their sum."""
    made = pytest.importorskip("transformers").DeepseekV3Config(**config("deepseek-v3"))
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as modeling

    with torch.device("meta"):
        dense, expert = (modeling.DeepseekV3DecoderLayer(made, number) for number in (0, 60))
        words = torch.nn.Embedding(V3.vocabulary, V3.hidden)
        norm = modeling.DeepseekV3RMSNorm(V3.hidden)
    assert parameters(dense) == sum(layer(V3, 0).values())
    assert parameters(expert) == sum(layer(V3, 60).values())
    total = 3 * parameters(dense) + 58 * parameters(expert) + 2 * parameters(words) + parameters(norm)
    assert total == sum(count_parameters(V3).values())
    biases = dict(expert.named_buffers())["mlp.gate.e_score_correction_bias"]
    assert 58 * biases.numel() == routing_biases(V3)


LAYOUTS = {
    "256 dies": (256, 1, 32, 1, (6, 8, 8, 8, 8, 8, 8, 7)),
    "tensor 2": (64, 2, 8, 1, (15, 15, 15, 16)),
    "tensor 4, expert tensor 2": (64, 4, 4, 2, (15, 15, 15, 16)),
}


@pytest.fixture(scope="module")
def built(code_tree: Path) -> dict[str, list[dict[str, Any]]]:
    """The stages of each layout as Megatron-core builds them, by one process: it takes seconds to import."""
    sizes = {name: value for name, value in vars(V3).items() if isinstance(value, int)}
    sizes |= vars(present(V3.latent))
    keys = ("world", "tensor", "expert", "expert_tensor", "layers")
    jobs = [dict(zip(keys, layout, strict=True)) for layout in LAYOUTS.values()]
    jobs = [{**job, "pipeline": len(job["layers"]), "context": 1, "model": sizes} for job in jobs]
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "PYTHONPATH": os.pathsep.join([str(code_tree), str(REHEARSAL)]),
        **byte_code(),
        "OMP_NUM_THREADS": "1",
    }
    script = Path(__file__).with_name("core_on_meta.py")
    done = ok(run_program([sys.executable, script, json.dumps(jobs)], env=environment, timeout=300))
    return dict(zip(LAYOUTS, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_pipeline_stage_of_megatron_core(built: dict[str, list[dict[str, Any]]], name: str) -> None:
    """The parameters of one die of each stage by component, and their bytes, are exactly those that are built."""
    world, tensor, expert, expert_tensor, layers = LAYOUTS[name]
    share = training_share(tensor, expert, expert_tensor)
    counted = [stage(V3, part, share) for part in stage_ranges(layers)]
    rows = built[name]
    assert [row["layers"] for row in rows] == list(layers)
    assert [row["counts"] for row in rows] == [dict(counts) for counts in counted]
    assert [row["bytes"] for row in rows] == [WEIGHT * sum(counts.values()) for counts in counted]
    if world == 256:
        assert [one.weights for one in present(plan().memory).stages] == [row["bytes"] for row in rows]
