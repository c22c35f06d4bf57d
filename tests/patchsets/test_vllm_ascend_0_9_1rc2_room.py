"""The patch kv-cache-room of patchsets vllm-ascend/0.9.1rc2 and f20869e: their own scheduler over a short KV cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.patchsets.flagship_tree import run, tree, used
from tests.support import ROOT

for needed in ("torch", "msgspec", "gguf", "blake3"):  # what vLLM imports
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

WITNESS = ROOT / "npu_rl/recipes/faults/witnesses/lost_sequences.py"
SLUG = "kv-cache-room"

PAIR = {
    "first": 1020,
    "second": 1020,
}  # of 40 more each they are nine blocks of 128, and longer than a step of 1024
MANY = {f"prompt {number}": 100 + 77 * number for number in range(9)}  # up to 12 blocks with 700 more
CASES: dict[str, dict[str, Any]] = {
    "ample": {"prompts": PAIR, "response": 40, "blocks": 64},
    "exact": {"prompts": PAIR, "response": 40, "blocks": 19},  # one is vLLM's null block
    "short": {"prompts": PAIR, "response": 40, "blocks": 18},
    "many, ample": {"prompts": MANY, "response": 700, "blocks": 1000},
    "many, short": {"prompts": MANY, "response": 700, "blocks": 40},
    "alone": {"prompts": MANY, "response": 700, "blocks": 13},
    "a step of all": {"prompts": PAIR, "response": 40, "blocks": 18, "step": 4096},
}


@pytest.fixture(scope="module", params=["deepseek-r1-zero", "deepseek-v3-cann"])
def manifest(request: pytest.FixtureRequest) -> str:
    """Of vllm-ascend 0.9.1rc2 and of f20869e."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def patched_tree(upstreams: Path, tmp_path_factory: pytest.TempPathFactory, manifest: str) -> Path:
    folder = tmp_path_factory.mktemp("room") / "code"
    return tree(upstreams, folder, ["vllm", "vllm-ascend"], manifest=manifest)


@pytest.fixture(scope="module")
def upstreams_cases(
    upstreams: Path, tmp_path_factory: pytest.TempPathFactory, manifest: str
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("room-upstream") / "code"
    return serve(tree(upstreams, folder, ["vllm", "vllm-ascend"], without=SLUG, manifest=manifest))


def serve(code: Path, **named: Any) -> dict[str, Any]:
    return witness(code, json.dumps({"cases": CASES}), **named)["cases"]  # type: ignore[no-any-return]


def witness(code: Path, *job: str, **named: Any) -> dict[str, Any]:
    given = {"VLLM_PLUGINS": "", "VLLM_USE_V1": "1", "VLLM_VERSION": "0.9.1", **named}
    found: dict[str, Any] = run(WITNESS, code, *job, **given)
    return found


def test_the_witness_shows_the_fault(patched_tree: Path) -> None:
    """One of two responses is lost without the patch's part."""
    found, upstream = witness(patched_tree), witness(patched_tree, NPU_RL_KV_CACHE_ROOM="0")
    assert (found["fault"], found["lost"]) == (False, 0)
    assert (upstream["fault"], upstream["lost"]) == (True, 1)


def test_no_response_is_lost_in_a_short_cache(
    patched_tree: Path, upstreams_cases: dict[str, Any], tmp_path: Path
) -> None:
    """Upstream preempts and drops. Patched, all end, none is preempted, and each has the tokens of an ample cache."""
    lost = {
        name: sum(end != "length" for end in case["ended"].values()) for name, case in upstreams_cases.items()
    }
    assert lost["short"] == 1 and lost["many, short"] >= 1
    assert lost["ample"] == lost["exact"] == lost["many, ample"] == lost["a step of all"] == 0
    usage = tmp_path / "usage"
    found = serve(patched_tree, usage=usage)
    assert {end for case in found.values() for end in case["ended"].values()} == {"length"}
    kept = {name: case for name, case in found.items() if name != "a step of all"}
    assert [case["preempted"] for case in kept.values()] == [0] * len(kept), found
    for name, like in (
        ("exact", "ample"),
        ("short", "ample"),
        ("many, short", "many, ample"),
        ("alone", "many, ample"),
    ):
        assert found[name]["tokens"] == upstreams_cases[like]["tokens"]
    assert {name: case["most"] for name, case in found.items()} == {
        "ample": 2, "exact": 2, "short": 1, "many, ample": 9, "many, short": 4, "alone": 1, "a step of all": 2,
    }  # fmt: skip
    assert used(usage, SLUG) > 0

    can_come_back = found[
        "a step of all"
    ]  # a step of 4096 tokens holds it again: upstream's scheduling is left alone
    assert can_come_back == upstreams_cases["a step of all"] and can_come_back["preempted"] > 0
    assert can_come_back["tokens"] == found["ample"]["tokens"]
    for name in ("ample", "many, ample"):
        assert found[name] == upstreams_cases[name]


def test_switched_off_it_is_upstream(
    patched_tree: Path, upstreams_cases: dict[str, Any], tmp_path: Path
) -> None:
    usage = tmp_path / "usage"
    assert serve(patched_tree, usage=usage, NPU_RL_KV_CACHE_ROOM="0") == upstreams_cases
    assert used(usage, SLUG) == 0
