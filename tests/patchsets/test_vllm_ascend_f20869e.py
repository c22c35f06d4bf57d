"""The patchset vllm-ascend/f20869e, on vllm-ascend's own code of that commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, tree

for needed in ("torch", "msgspec", "gguf", "blake3", "numba"):  # what vLLM's engine imports
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

FIX_ROUTE = WITNESSES / "fix_route_unset_dies.py"
KV_NZ = WITNESSES / "kv_nz_prefill_written_twice.py"
COMPONENTS = ["vllm", "vllm-ascend"]
VERSION = {"VLLM_VERSION": "0.9.1"}  # vllm-ascend asks for it where vLLM has no _version.py
OF_THE_ROUTER = [[3, 2], [0, 1], [1, 2]]
IN_TURN = [[0, 1], [2, 3], [0, 1]]


def test_unset_is_the_routers_choice(upstreams: Path, tmp_path: Path) -> None:
    """Upstream's int(None) ends the engine's first forward pass; 1 still gives the experts in turn."""
    upstream = tree(upstreams, tmp_path / "upstream", COMPONENTS, patched=False, manifest="deepseek-v3-cann")
    before = run(FIX_ROUTE, upstream, **VERSION)
    assert before["fault"] and "not 'NoneType'" in before["chosen"].pop("unset")
    assert before["chosen"] == {"0": OF_THE_ROUTER, "1": IN_TURN}
    code = tree(upstreams, tmp_path / "code", COMPONENTS, manifest="deepseek-v3-cann")
    chosen = {"unset": OF_THE_ROUTER, "0": OF_THE_ROUTER, "1": IN_TURN}
    assert run(FIX_ROUTE, code, **VERSION) == {"fault": False, "chosen": chosen}


UPSTREAMS = {"fault": True, "nz": ["PA_BLK_NZ", "rows"], "rows": ["PA", "rows"]}


def test_prompts_are_written_in_nz_once(upstreams: Path, tmp_path: Path) -> None:
    """Upstream counts blocks where it is given slots, and writes rows over it; without NZ both write the same."""
    upstream = tree(upstreams, tmp_path / "upstream", COMPONENTS, patched=False, manifest="deepseek-v3-cann")
    assert run(KV_NZ, upstream, **VERSION) == UPSTREAMS
    code = tree(upstreams, tmp_path / "code", COMPONENTS, manifest="deepseek-v3-cann")
    assert run(KV_NZ, code, **VERSION) == {"fault": False, "nz": ["PA_NZ"], "rows": ["PA", "rows"]}


def test_switched_off_prompts_are_written_as_upstream_does(upstreams: Path, tmp_path: Path) -> None:
    code = tree(upstreams, tmp_path / "code", COMPONENTS, manifest="deepseek-v3-cann")
    assert run(KV_NZ, code, NPU_RL_KV_NZ_PREFILL="0", **VERSION) == UPSTREAMS
