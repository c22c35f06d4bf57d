"""The patchset verl/0.5.0, held against the release it is for."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.bundled import runtime_root
from npu_rl.common.errors import SourceError
from npu_rl.recipes.faults.fault import WITNESSES
from npu_rl.stack.lock import lock_model
from npu_rl.stack.manifest.manifest_kind import find_manifest
from npu_rl.stack.sources.pip_config import read_pip_settings
from npu_rl.stack.sources.pypi import download_sdist
from npu_rl.stack.sources.sdist import read_sdist
from tests.patchsets.conftest import Patched

RUNNER = WITNESSES / "hf_rollout_repeats_twice.py"
FOLDER = "verl/workers/rollout"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The rollouts of the very sdist that the quickstart locks."""
    lock = lock_model.read(lock_model.lock_path(find_manifest("quickstart")))
    (source,) = lock.components["verl"].sources
    assert source.pypi == "verl==0.5.0"
    folder = tmp_path_factory.mktemp("sdist")
    settings = replace(read_pip_settings(), retries=1)
    try:
        found = download_sdist("verl", "0.5.0", sha256=source.sha256, settings=settings, folder=folder)
    except SourceError as error:
        if os.environ.get("NPU_RL_REQUIRE_PYPI") == "1" or "wrong sha256" in str(error):
            raise
        pytest.skip(f"no package index can be reached: {error}")
    return {file.path: file.data for file in read_sdist(found.path, keep=[FOLDER])}


def run(
    folder: Path, hf_rollout: bytes, base: bytes, mode: str, tensors: str = "stand-in", **switches: str
) -> dict[str, Any]:
    """What upstream's function does. Anything that is not an answer, an import error too, fails the test."""
    folder.mkdir()
    (folder / "hf_rollout.py").write_bytes(hf_rollout)
    (folder / "base.py").write_bytes(base)
    (folder / "npu_rl_runtime").symlink_to(runtime_root())  # under the name that it has in a tree
    done = subprocess.run(
        [sys.executable, "-B", str(RUNNER), str(folder), mode, tensors],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(folder), **switches},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["torch"] == "stand-in") == (tensors == "stand-in")
    return found


@pytest.mark.pypi
@pytest.mark.parametrize("tensors", ["stand-in", "torch"])
def test_one_answer_per_row(
    release: dict[str, bytes], patched: Patched, tmp_path: Path, tensors: str
) -> None:
    """The trainer has repeated each prompt n times; upstream answers each of these n times again."""
    if tensors == "torch" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed here; the stand-in has the same rows and columns")
    path = f"{FOLDER}/hf_rollout.py"
    before, base = release[path], release[f"{FOLDER}/base.py"]
    after = patched("verl/0.5.0", path, before)
    assert after != before
    wrong = run(tmp_path / "before", before, base, "sample", tensors)
    assert (wrong["fault"], wrong["given"], wrong["asked"]) == (True, 6, [3])
    assert set(wrong["rows"].values()) == {18}  # 2 prompts x 3 x 3
    right = run(tmp_path / "after", after, base, "sample", tensors)
    assert (right["fault"], right["given"], right["asked"]) == (False, 6, [1])
    assert set(right["rows"].values()) == {6}
    assert set(right["rows"]) == {"prompts", "responses", "input_ids", "attention_mask", "position_ids"}
    assert right["columns"] == wrong["columns"]
    assert right["columns"]["responses"] == 5


@pytest.mark.pypi
@pytest.mark.parametrize("mode", ["greedy", "validate"])
def test_the_other_ways_to_answer_are_as_before(
    release: dict[str, bytes], patched: Patched, tmp_path: Path, mode: str
) -> None:
    path = f"{FOLDER}/hf_rollout.py"
    base = release[f"{FOLDER}/base.py"]
    before = run(tmp_path / "before", release[path], base, mode)
    after = run(tmp_path / "after", patched("verl/0.5.0", path, release[path]), base, mode)
    assert before == after
    assert set(after["rows"].values()) == {6}


@pytest.mark.pypi
def test_switched_off_it_is_upstream(release: dict[str, bytes], patched: Patched, tmp_path: Path) -> None:
    path = f"{FOLDER}/hf_rollout.py"
    base = release[f"{FOLDER}/base.py"]
    before = run(tmp_path / "before", release[path], base, "sample")
    after = patched("verl/0.5.0", path, release[path])
    off = run(tmp_path / "off", after, base, "sample", NPU_RL_HF_ROLLOUT_REPEATS_ONCE="0")
    assert off == before
    assert off["asked"] == [3]
    assert run(tmp_path / "on", after, base, "sample")["asked"] == [1]


@pytest.mark.pypi
def test_its_hook_is_counted(release: dict[str, bytes], patched: Patched, tmp_path: Path) -> None:
    """`--rehearse` reports how often each hook ran; a switch that is off counts nothing."""
    path = f"{FOLDER}/hf_rollout.py"
    base, after = release[f"{FOLDER}/base.py"], patched("verl/0.5.0", path, release[path])
    for value, lines in (("1", ["           1 hf-rollout-repeats-once"]), ("0", [])):
        usage = tmp_path / f"usage{value}"
        usage.mkdir()
        run(
            tmp_path / value,
            after,
            base,
            "sample",
            NPU_RL_USAGE=str(usage),
            NPU_RL_HF_ROLLOUT_REPEATS_ONCE=value,
        )
        assert [line for file in usage.iterdir() for line in file.read_text().splitlines()] == lines
