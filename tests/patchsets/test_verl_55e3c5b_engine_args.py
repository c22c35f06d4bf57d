"""The patch rollout-engine-args of patchset verl/55e3c5b: verl's own rollout calls vLLM's own LLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from npu_rl.common.bundled import data_root
from tests.patchsets.flagship_tree import run, tree, used
from tests.support import ROOT

for needed in ("torch", "ray", "tensordict", "msgspec", "gguf", "blake3"):  # what verl and vLLM import
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

COMPONENTS = ["verl", "vllm"]
RUNNER = Path(__file__).with_name("run_vllm_rollout.py")
WITNESS = ROOT / "npu_rl/recipes/faults/witnesses/stale_prefix_cache.py"
SLUG = "rollout-engine-args"
FLAGSHIP: dict[str, Any] = yaml.safe_load(
    (data_root() / "recipes" / "deepseek-r1-zero-256die.yaml").read_text(encoding="utf-8")
)["rollout"]["engine_arguments"]

SAID: list[dict[str, Any]] = [
    FLAGSHIP,
    {"enable_prefix_caching": False, "disable_custom_all_reduce": False, "seed": 7, "swap_space": None},
    {"enable_prefix_caching": True},
    {},
]
ELSEWHERE = {
    "model": "x",
    "tensor_parallel_size": 1,
    "distributed_executor_backend": "mp",
    "enable_sleep_mode": True,
    "dtype": "float16",
    "max_num_batched_tokens": 1,
    "skip_tokenizer_init": True,
    "trust_remote_code": True,
}


@pytest.fixture(scope="module")
def upstreams_tree(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine-args-upstream") / "code"
    return tree(upstreams, folder, COMPONENTS, without=SLUG)


def made(code: Path, said: list[dict[str, Any]], omega: bool = False, **named: Any) -> list[dict[str, Any]]:
    """What each rollout's engine was asked for."""
    jobs = [{"engine_kwargs": {"vllm": one}} for one in said]
    found = run(RUNNER, code, json.dumps({"jobs": jobs, "omega": omega}), npu=False, VLLM_PLUGINS="", **named)
    (rank,) = found["ranks"]
    return list(rank)


def test_the_recipe_reaches_the_engine(patched_tree: Path, upstreams_tree: Path, tmp_path: Path) -> None:
    """Upstream takes every keyword that it fixes for a mistake in the call; with the patch the recipe's counts."""
    before = made(upstreams_tree, SAID)
    assert "multiple values for keyword argument" in before[1]["error"]
    assert "multiple values for keyword argument 'enable_prefix_caching'" in before[2]["error"]
    flagship, fixed, cached, nothing = (
        one["engine"] for one in made(patched_tree, SAID, usage=tmp_path / "usage")
    )
    assert used(tmp_path / "usage", SLUG) == 4
    assert flagship["enable_expert_parallel"] is True
    assert flagship["additional_config"] == FLAGSHIP["additional_config"]
    assert (fixed["enable_prefix_caching"], fixed["disable_custom_all_reduce"], fixed["seed"]) == (
        False,
        False,
        7,
    )
    assert fixed["swap_space"] == nothing["swap_space"]  # None stays vLLM's own
    assert cached["enable_prefix_caching"] is True
    # What nobody said is upstream's, but for the prefixes of old weights.
    assert nothing == before[3]["engine"] | {"enable_prefix_caching": False}
    assert before[3]["engine"]["enable_prefix_caching"] is True


def test_containers_of_omegaconf_become_plain(patched_tree: Path, upstreams_tree: Path) -> None:
    """However deep: vllm-ascend takes graph_batch_sizes for a list only if it is one."""
    assert "DictConfig" in made(upstreams_tree, [FLAGSHIP], omega=True)[0]["error"]
    (plain,) = made(patched_tree, [FLAGSHIP], omega=True)
    assert plain["engine"]["additional_config"] == FLAGSHIP["additional_config"]


def test_what_belongs_elsewhere_is_refused_by_name(patched_tree: Path) -> None:
    found = made(patched_tree, [{key: value} for key, value in ELSEWHERE.items()])
    for key, one in zip(ELSEWHERE, found, strict=True):
        assert one["error"].startswith(f"ValueError: rollout.engine_arguments.{key}=")


def test_switched_off_it_is_upstream(patched_tree: Path, upstreams_tree: Path, tmp_path: Path) -> None:
    said = [*SAID, {"model": "x"}]
    off = made(patched_tree, said, usage=tmp_path / "usage", NPU_RL_ROLLOUT_ENGINE_ARGS="0")
    assert off == made(upstreams_tree, said)
    assert used(tmp_path / "usage", SLUG) == 0
    needed = {"VLLM_VERSION": "0.9.1", "HF_HUB_OFFLINE": "0"}
    assert not run(WITNESS, patched_tree, **needed)["fault"]
    assert run(WITNESS, patched_tree, **needed, NPU_RL_ROLLOUT_ENGINE_ARGS="0")["fault"]
