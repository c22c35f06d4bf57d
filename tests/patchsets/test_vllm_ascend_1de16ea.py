"""The patchset vllm-ascend/1de16ea: vllm-ascend from its sources, with and without its compiled module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patchsets.flagship_tree import run

pytest.importorskip("torch")
pytest.importorskip("msgspec")
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

COMPONENTS = ["vllm", "vllm-ascend"]
MANIFEST = "verl-npu-plugin"
RUNNER = Path(__file__).with_name("run_build_info.py")


def test_it_runs_from_its_sources(patched_tree: Path) -> None:
    assert run(RUNNER, patched_tree) == {"is_310p": False, "sleep_mode_enabled": False, "compiled": None}
    assert run(RUNNER, patched_tree, SOC_VERSION="Ascend310P3")["is_310p"] is True


def test_a_compiled_module_is_found(patched_tree: Path, tmp_path: Path) -> None:
    (tmp_path / "vllm_ascend_C.py").write_text("NAME = 'built elsewhere'\n")
    found = run(RUNNER, patched_tree, VLLM_ASCEND_BUILT=str(tmp_path))
    assert found == {"is_310p": False, "sleep_mode_enabled": True, "compiled": "built elsewhere"}
