"""From a store into one file, and from the file into a workspace where there is no network and no store."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import zlib
from pathlib import Path

import pytest

from npu_rl.common.errors import BundleError, UsageError
from npu_rl.stack.bundles.bundle_file import FILES, UNITS
from npu_rl.stack.bundles.open_bundle import bundled_store, open_bundle
from npu_rl.stack.lock import lock_model
from tests.bundles.made import MadeStack, members_of, sealed
from tests.support import assert_told, clean_env, ok, run_cli, run_program

UNSHARE = ("unshare", "-rn")


def bare_env(folder: Path) -> dict[str, str]:
    return {**clean_env(folder), "NPU_RL_STORE": str(folder / "none")}


def test_a_workspace_from_a_bundle_is_the_one_of_the_lock(stack: MadeStack, tmp_path: Path) -> None:
    env = bare_env(tmp_path)
    shutil.copytree(stack.manifest.parent, tmp_path / "project")
    (tmp_path / "project" / "fix.patch").unlink()  # its text comes from the bundle
    words: list[str | Path] = ["-m", tmp_path / "project/m.yaml", "-w", tmp_path / "ws", "--json"]
    words += ["--bundle", stack.file]
    done = json.loads(ok(run_cli(["setup", *words], env)).stdout)
    lock = lock_model.read(lock_model.lock_path(stack.manifest))
    assert (done["lock"]["tree"], done["lock_digest"], done["outcome"]["received"]) == (
        lock.tree,
        lock_model.digest_of(lock),
        0,
    )
    assert done["outcome"]["sources"]["up"] == "m.tar"
    ok(run_cli(["verify", "--deep", "-w", tmp_path / "ws", "--expect", done["lock_digest"]], env))
    assert (tmp_path / "ws/code/pkg/a.py").read_text() == "one\n2\n"
    assert (tmp_path / "ws/src/up/docs/x").exists()
    assert not (tmp_path / "none").exists() and not list((tmp_path / "tmp").glob("npu-rl-bundle-*"))
    again = json.loads(ok(run_cli(["setup", *words], env)).stdout)
    assert again["outcome"]["changed"] is False


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare")
def test_no_network_is_needed(stack: MadeStack, tmp_path: Path) -> None:
    if run_program([*UNSHARE, "true"]).returncode:
        pytest.skip("this host permits no network namespace")
    env = bare_env(tmp_path)
    program = [*UNSHARE, sys.executable, "-m", "npu_rl"]
    place = str(tmp_path / "ws")
    setup = [*program, "setup", "-m", str(stack.manifest), "-w", place, "--bundle", str(stack.file)]
    ok(run_program(setup, env=env))
    assert "equals its lock" in ok(run_program([*program, "verify", "--deep", "-w", place], env=env)).stdout


def test_another_lock_is_refused(stack: MadeStack, tmp_path: Path) -> None:
    env = bare_env(tmp_path)
    other = stack.manifest.with_name("other.yaml")
    words = ["setup", "-m", str(other), "-w", f"{tmp_path}/ws", "--bundle", str(stack.file)]
    assert_told(run_cli(words, env), "The bundle is made for another lock", "m ")
    assert not (tmp_path / "ws").exists()
    done = run_cli(["setup", "--bundle", stack.file], env, tmp_path)
    assert_told(done, "Name the manifest to set up", "manifests/m/m.yaml", code=2)


def test_objects_that_a_bundle_lacks_are_missed(stack: MadeStack, tmp_path: Path) -> None:
    """Of somebody who can make the rest fit: git finds what a pack lacks, and its index gives no object a name."""
    members = members_of(stack.file)
    unit = next(name for name in members if name.startswith(UNITS))
    patch = next(name for name in members if name.startswith(FILES))
    empty = b"PACK" + (2).to_bytes(4, "big") + bytes(4)
    packs = (
        empty + hashlib.sha1(empty, usedforsecurity=False).digest(),
        b"no pack",
        zlib.compress(b"x") * 9,
    )
    cases = [{**members, unit: content} for content in packs]
    cases += [{name: members[name] for name in members if name != left} for left in (unit, patch)]
    cases += [{**members, patch: b"else"}]
    lock = lock_model.read(lock_model.lock_path(stack.manifest))
    for case in cases:
        (tmp_path / "bad.tar").write_bytes(sealed(case))
        with (
            open_bundle(tmp_path / "bad.tar") as bundle,
            pytest.raises(BundleError, match=r"does not have|lacks a patch"),
        ):
            bundled_store(bundle, lock)


def test_what_exists_is_not_written_over(stack: MadeStack, tmp_path: Path) -> None:
    (tmp_path / "m.tar").write_bytes(b"mine")
    with pytest.raises(UsageError, match="The file exists"):
        stack.bundle(tmp_path / "m.tar")
    with pytest.raises(UsageError, match="folder does not exist"):
        stack.bundle(tmp_path / "nowhere/m.tar")
    with pytest.raises(UsageError, match="Two of the manifests"):
        stack.bundle(tmp_path / "n.tar", "m", "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m.tar"]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
def test_the_documented_lines_sign_and_verify(stack: MadeStack, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/install.md").read_text()
    sign, verify = (line for line in page.splitlines() if line.startswith("ssh-keygen -Y "))
    (tmp_path / "quickstart.tar").write_bytes(stack.file.read_bytes())
    ok(run_program(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{tmp_path}/id_ed25519"]))
    (tmp_path / "allowed_signers").write_text(f"NAME {(tmp_path / 'id_ed25519.pub').read_text()}")
    ok(run_program(["sh", "-c", sign.replace("~/.ssh/", "")], cwd=tmp_path))
    ok(run_program(["sh", "-c", verify], cwd=tmp_path))
    with (tmp_path / "quickstart.tar").open("ab") as file:
        file.write(b"\0")
    assert run_program(["sh", "-c", verify], cwd=tmp_path).returncode != 0
