from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError
from npu_rl.stack.pylocks.uv_program import find_uv
from tests.installation.made_packages import Stack
from tests.sources.package_index import PackageIndex


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """A stack whose index is the only one of pip's configuration, and an empty environment."""
    try:
        uv = find_uv()
    except HostError:
        pytest.skip("needs uv: pip install '.[test]'")
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_", "ASCEND_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name, value in {"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}.items():
        monkeypatch.setenv(name, value)
    words = ["venv", "-q", "--python", sys.executable, str(tmp_path / "env")]
    subprocess.run([uv, *words], check=True, env=os.environ)
    with PackageIndex() as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield Stack(tmp_path, index)
