"""A patch's test that skips for want of a package fails where NPU_RL_REQUIRE_PACKAGES=1, as in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patchsets.conftest import REQUIRED
from tests.support import ROOT

TESTS = {
    "module": "import pytest\npytest.importorskip('no_such_package')\ndef test_it(): pass\n",
    "test": "import pytest\ndef test_it(): pytest.importorskip('no_such_package')\n",
    "upstreams": "import pytest\ndef test_it(): pytest.skip('NPU_RL_UPSTREAMS names no folder')\n",
}


@pytest.mark.parametrize(
    ("required", "code", "outcomes"),
    [
        ("", 0, {"module": "SKIPPED", "test": "SKIPPED", "upstreams": "SKIPPED"}),
        ("1", 1, {"module": "ERROR", "test": "FAILED", "upstreams": "SKIPPED"}),
    ],
)
@pytest.mark.second
def test_a_missing_package_fails(required: str, code: int, outcomes: dict[str, str], tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests/patchsets/conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, text in TESTS.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    options = ["-q", "-rsfE", "--continue-on-collection-errors", "-p", "no:cacheprovider"]
    env = {**os.environ, REQUIRED: required, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    lines = done.stdout.splitlines()
    for name, outcome in outcomes.items():
        assert any(line.startswith(outcome) and f"test_{name}.py" in line for line in lines), done.stdout
    assert done.stdout.count("a package is missing") >= sum(one != "SKIPPED" for one in outcomes.values())
