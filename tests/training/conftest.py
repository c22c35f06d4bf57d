"""A workspace of a bundled manifest from the real upstreams, for the modules that name one as MANIFEST."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.config.read_once import _yaml_is_parsed_once
from tests.support import clean_env, require_untouched, rewrites, run_cli

__all__ = ["_yaml_is_parsed_once", "env", "workspace"]
PIP = [name for name in os.environ if name.startswith("PIP_")]


@pytest.fixture(scope="module")
def env(
    request: pytest.FixtureRequest, upstreams: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """An environment in which every git URL of the manifest leads to a folder of `NPU_RL_UPSTREAMS`."""
    manifest: str = request.module.MANIFEST
    folder = tmp_path_factory.mktemp(manifest)
    env = clean_env(folder, keep=PIP)
    env["HOME"] = os.environ.get("HOME", env["HOME"])  # the user's pip configuration names the mirror
    return {**env, "NPU_RL_REWRITE": rewrites(upstreams, manifest), "NPU_RL_RUNS": str(folder / "runs")}


@pytest.fixture(scope="module")
def workspace(
    request: pytest.FixtureRequest, env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("workspace") / "ws"
    done = run_cli(["setup", "--manifest", request.module.MANIFEST, "--workspace", folder], env, timeout=600)
    assert done.returncode == 0, done.stderr
    yield folder
    require_untouched(folder)
