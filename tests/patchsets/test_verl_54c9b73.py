"""The patchset verl/54c9b73, held against the commit it is for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patchsets.conftest import Patched
from tests.support import git

RUNNER = Path(__file__).with_name("record_imports.py")
PIN = "54c9b7364c2d188b2ba4107404cfa3c2b446df19"
FILE = "verl/workers/megatron_workers.py"
PRELUDE = "verl_patches.prelude_patch"


def imports(path: Path, content: str) -> list[str]:
    """What running the whole file imports, in order. An error while it runs fails the test."""
    path.write_text(content, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(RUNNER), str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "ActorRolloutRefWorker" in found["classes"]
    asked: list[str] = found["asked"]
    return asked


@pytest.mark.upstreams
def test_the_prelude_comes_first(upstreams: Path, patched: Patched, tmp_path: Path) -> None:
    """The recipe's prelude replaces what an NPU host lacks; that is too late once torch is imported."""
    content = git("cat-file", "blob", f"{PIN}:{FILE}", git_dir=upstreams / "volcengine+verl" / "repo") + "\n"
    before = imports(tmp_path / "before.py", content)
    assert PRELUDE not in before
    assert before[0] == "torch"
    after = imports(tmp_path / "after.py", patched("verl/54c9b73", FILE, content.encode()).decode())
    assert after[:3] == ["verl_patches", PRELUDE, "torch"]
    assert after[2:] == before
