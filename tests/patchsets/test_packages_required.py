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


@pytest.mark.parametrize("name", TESTS)
def test_a_missing_package_fails(name: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests/patchsets/conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(TESTS[name])
    for value, code in (("", {0, 5}), ("1", {0} if name == "upstreams" else {1, 2})):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
        env = {**os.environ, REQUIRED: value, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode in code, done.stdout
        if code & {1, 2}:
            assert "a package is missing" in done.stdout and "no_such_package" in done.stdout
