"""`--allow-drift`: what differs is in the record, and the run is unproven wherever it is shown."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from npu_rl.common.errors import UsageError, WorkspaceError
from npu_rl.training.run.allow_drift import AllowedDrift, allowed_drift, drift_digest, parse_reason
from npu_rl.workspace.folder import file_check
from npu_rl.workspace.folder.receipt import read_receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.verify import Drift, verify
from tests.in_process import run_here
from tests.support import clean_env
from tests.training.fake_run import FakeRun

HAS_TORCH = importlib.util.find_spec("torch") is not None
FILE = "code/verl/trainer/main_ppo.py"


@pytest.fixture
def workspace(quickstart_workspace: Path, tmp_path: Path) -> WorkspacePaths:
    """A copy, for changes."""
    shutil.copytree(quickstart_workspace, tmp_path / "ws", symlinks=True)
    return WorkspacePaths(tmp_path / "ws")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {**clean_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs")}


def add_print(paths: WorkspacePaths) -> None:
    with (paths.root / FILE).open("a") as file:
        file.write("print('mine')\n")


def nobody(_: str) -> None:
    pass


# -- what is recorded ----------------------------------------------------------------------------------


@pytest.mark.pypi
def test_the_patch_undoes_the_changes_and_each_change_has_a_digest(workspace: WorkspacePaths) -> None:
    clean = verify(workspace, nobody, deep=True)
    assert drift_digest(workspace, clean) is None
    add_print(workspace)
    (workspace.code / "verl" / "protocol.py").unlink()
    found = allowed_drift(workspace, changed := verify(workspace, nobody, deep=True), "a print", nobody)
    assert dict(found.files) == {FILE: "modified", "code/verl/protocol.py": "missing"}
    digest = drift_digest(workspace, changed)
    add_print(workspace)
    assert drift_digest(workspace, verify(workspace, nobody, deep=True)) not in (None, digest)
    add = ["git", "apply", "--reverse", "--whitespace=nowarn", "-"]
    (workspace.root / FILE).write_text((workspace.root / FILE).read_text().removesuffix("print('mine')\n"))
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(workspace.root), "GIT_DIR": "/dev/null"}
    subprocess.run(add, input=found.patch, cwd=workspace.code, env=env, check=True)
    assert verify(workspace, nobody, deep=True).ok


@pytest.mark.pypi
@pytest.mark.parametrize("path", [".npu-rl/lock.json", ".npu-rl/receipt.json"])
def test_the_reference_files_can_not_be_allowed_to_differ(workspace: WorkspacePaths, path: str) -> None:
    report = verify(workspace, nobody, deep=True)
    report.drift.append(Drift(path, "modified", None))
    with pytest.raises(WorkspaceError, match="can't be judged"):
        allowed_drift(workspace, report, "no", nobody)


@pytest.mark.parametrize("text", ["", "  ", "\n\t", "\x00"])
def test_a_reason_says_something(text: str) -> None:
    with pytest.raises(UsageError, match="needs a reason"):
        parse_reason(text)
    assert parse_reason(" a\nprint\x1b[31m ") == "a print [31m"


# -- what refuses ---------------------------------------------------------------------------------------


@pytest.mark.pypi
def test_a_change_that_a_quick_look_misses_is_refused(workspace: WorkspacePaths, env: dict[str, str]) -> None:
    """stat.json is forged; only reading every byte shows the change."""
    assert verify(workspace, nobody, deep=True).ok
    file = workspace.root / FILE
    file.write_bytes(file.read_bytes().replace(b"import", b"imqort", 1))
    digest = read_receipt(workspace).digest
    stats = file_check.read_stats(workspace.stat, digest) or {"code": {}}
    stats["code"][FILE.removeprefix("code/")] = file_check.stat_of(file.stat())
    workspace.stat.write_text(json.dumps({"receipt": digest, "roots": stats}))
    quick = run_here(["verify", "--workspace", workspace.root], env, workspace.root)
    assert quick.returncode == 0, "the forgery works"
    done = run_here(["train", "quickstart", "--workspace", workspace.root], env, workspace.root)
    assert done.returncode == 3
    assert FILE in done.stderr and "--allow-drift REASON" in done.stderr


# -- where it is shown ----------------------------------------------------------------------------------

DRIFT = AllowedDrift("a print in the reward", {"code/a.py": "modified"}, b"diff --git ...\n")


@pytest.mark.skipif(sys.platform != "linux", reason="a run's processes are found through /proc")
def test_a_run_with_an_unproven_attempt_is_unproven_from_then_on(tmp_path: Path) -> None:
    run = FakeRun(tmp_path)
    trained, shown = run.train(["steps=5"])
    assert trained.to_json()["proven"] is True and "UNPROVEN" not in shown
    for drift in (DRIFT, None):
        trained, shown = run.train(["steps=5"], drift=drift, resume=True)
        told = trained.to_json()
        assert (told["proven"], told["unproven"]) == (False, DRIFT.reason)
        assert f"UNPROVEN: {DRIFT.reason}" in shown.splitlines()
    commands = [json.loads((run.runs / f"demo/attempts/{n}/command.json").read_text()) for n in (1, 2, 3)]
    expected = {"reason": DRIFT.reason, "files": 1}
    assert [command.get("drift") for command in commands] == [None, expected, None]
    attempt = run.runs / "demo/attempts/2"
    assert (attempt / "drift.patch").read_bytes() == DRIFT.patch
    assert json.loads((attempt / "drift.json").read_text())["files"] == {"code/a.py": "modified"}
