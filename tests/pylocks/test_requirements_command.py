"""`npu-rl requirements` from the locks beside manifests, and what it says where there is none."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from npu_rl.stack.pylocks.pylock_file import read_pylock
from tests.in_process import run_here
from tests.support import ROOT, assert_told, clean_env, ok

ENTRY = re.compile(r"[a-z0-9-]+==[^ ]+ \\(\n    --hash=sha256:[0-9a-f]{64}( \\)?)+")


def test_pips_format_has_versions_and_hashes_and_no_address(tmp_path: Path) -> None:
    words = ["requirements", "--manifest", "today", "--machine", "aarch64"]
    done = ok(run_here(words, clean_env(tmp_path)))
    pylock = read_pylock(ROOT / "manifests/pylock.today-py311-aarch64.toml")
    assert len(ENTRY.findall(done.stdout)) == len(pylock.packages)
    assert "://" not in done.stdout and "--index" not in done.stdout
    comments = [line for line in done.stdout.splitlines() if line.startswith("#")]
    assert "arctic-inference==0.1.1" in comments[3]  # no wheel: it is built


def test_the_other_format_is_the_file(tmp_path: Path) -> None:
    words = ["requirements", "-m", "quickstart", "--machine", "x86-64", "--python-version", "3.12"]
    done = ok(run_here([*words, "--format", "pylock"], clean_env(tmp_path)))
    assert done.stdout == (ROOT / "manifests/pylock.quickstart-py312-x86_64.toml").read_text()


def copied(folder: Path, **changes: object) -> Path:
    """`today` under its own name in another folder, with its locks."""
    path = folder / "mine.yaml"
    path.write_text(json.dumps({"schema": 1, "name": "mine", "title": "Mine", "extends": "today", **changes}))
    for name in ("today.lock.json", "pylock.today-py311-aarch64.toml"):
        shutil.copy(ROOT / "manifests" / name, folder / name.replace("today", "mine"))
    return path


def test_a_lock_of_other_requirements_is_refused(tmp_path: Path) -> None:
    words = ["requirements", "--machine", "aarch64", "--manifest"]
    path, env = copied(tmp_path), clean_env(tmp_path)
    ok(run_here([*words, path], env))
    path = copied(tmp_path, requirements={"append": ["rich==13.9.4"]})
    done = run_here([*words, path], env)
    assert_told(done, "made from other requirements", "--python-version 3.11 --machine aarch64 --resolve")
    (tmp_path / "pylock.mine-py311-aarch64.toml").unlink()
    assert_told(run_here([*words, path], env), "not locked", "--resolve")


def test_a_damaged_lock_is_refused(tmp_path: Path) -> None:
    path = copied(tmp_path)
    pylock = tmp_path / "pylock.mine-py311-aarch64.toml"
    whole = pylock.read_text()
    words = ["requirements", "--machine", "aarch64", "--manifest", path]
    for damaged in (whole[:5000], whole.replace('sha256 = "', 'sha256 = "0', 1), "", "a = [", "packages = 3"):
        pylock.write_text(damaged)
        assert_told(run_here(words, clean_env(tmp_path)), "Not a lock of packages that npu-rl made")
