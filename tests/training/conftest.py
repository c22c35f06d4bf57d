"""A workspace of a bundled manifest from the real upstreams, for the modules that name one as MANIFEST."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.config.read_once import _yaml_is_parsed_once
from tests.support import index_env, require_untouched, rewrites, run_cli

__all__ = ["_yaml_is_parsed_once", "env", "rehearsed", "workspace"]


@pytest.fixture(scope="module")
def env(
    request: pytest.FixtureRequest, upstreams: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """An environment in which every git URL of the manifest leads to a folder of `NPU_RL_UPSTREAMS`."""
    manifest: str = request.module.MANIFEST
    folder = tmp_path_factory.mktemp(manifest)
    rules = rewrites(upstreams, manifest)
    return {**index_env(folder), "NPU_RL_REWRITE": rules, "NPU_RL_RUNS": str(folder / "runs")}


@pytest.fixture(scope="module")
def workspace(
    request: pytest.FixtureRequest, env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("workspace") / "ws"
    done = run_cli(["setup", "--manifest", request.module.MANIFEST, "--workspace", folder], env, timeout=600)
    assert done.returncode == 0, done.stderr
    yield folder
    require_untouched(folder)


Rehearsed = Callable[[str], dict[str, Any]]


@pytest.fixture
def rehearsed(request: pytest.FixtureRequest, workspace: Path, env: dict[str, str]) -> Rehearsed:
    """`rehearsed("layout")`: what a level reports of the module's RECIPE, whose trainer imports REHEARSAL."""

    def report(level: str) -> dict[str, Any]:
        for needed in request.module.REHEARSAL:
            pytest.importorskip(needed)
        words = ["train", request.module.RECIPE, "--workspace", workspace, f"--rehearse={level}", "--json"]
        done = run_cli(words, env, timeout=1200)
        assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
        found: dict[str, Any] = json.loads(done.stdout)[level]
        return found

    return report
