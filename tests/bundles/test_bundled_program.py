"""`npu-rl bundle create` as it is typed: with npu-rl's real wheel and all that it needs, from PyPI."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from pathlib import Path

import pytest

from tests.bundles.made import MadeStack
from tests.support import index_env, ok, run_cli, run_program

# It takes 20 s, so it goes with the long tests: the fixture skips it elsewhere.
pytestmark = [pytest.mark.pypi, pytest.mark.upstreams, pytest.mark.usefixtures("upstreams")]

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.mark.skipif(shutil.which(f"python{HERE}") is None, reason=f"no python{HERE} on PATH")
def test_its_lines_make_an_environment_and_a_workspace(stack: MadeStack, tmp_path: Path) -> None:
    env = index_env(tmp_path, stack.world.root / "store")
    words: list[str | Path] = ["-o", tmp_path / "m.tar", "--python", HERE, "--platform", platform.machine()]
    made = json.loads(
        ok(run_cli(["bundle", "create", stack.manifest, *words, "--json"], env, timeout=300)).stdout
    )
    bare = {name: env[name] for name in ("PATH", "HOME", "TMPDIR")} | {"PIP_CONFIG_FILE": "/dev/null"}
    # In one shell, where `setup` ends with commands that begin with `npu-rl`.
    typed = [*made["start"], "command -v npu-rl", "npu-rl verify --deep"]
    done = ok(run_program(["sh", "-c", "set -e\n" + "\n".join(typed)], env=bare, cwd=tmp_path))
    assert f"\n{tmp_path}/npu-rl-env/bin/npu-rl\n" in done.stdout
    assert "Next: npu-rl verify" in done.stdout
    assert "equals its lock" in done.stdout
