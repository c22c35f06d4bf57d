"""From a store into one file, and from the file into a workspace where there is no network and no store."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

import pytest

from npu_rl.common.errors import BundleError, UsageError
from npu_rl.stack.bundles.bundle_names import UNITS, of_kind
from npu_rl.stack.bundles.bundled_store import bundled_store
from npu_rl.stack.bundles.read_bundle import open_bundle
from npu_rl.stack.lock import lock_model
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.stack.requirements.host_requirements import host_requirements, named_host_requirements
from tests.bundles.made import MadeStack, members_of, opened, sealed
from tests.support import assert_told, clean_env, ok, run_cli, run_program

UNSHARE = ("unshare", "-rn")


def test_two_creations_give_the_same_bytes(stack: MadeStack, tmp_path: Path) -> None:
    made = stack.bundle(tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == stack.file.read_bytes()
    assert made == stack.made
    assert [path.name for path in tmp_path.iterdir()] == ["again.tar"]


def test_other_packs_of_the_same_objects_give_the_same_id(stack: MadeStack, tmp_path: Path) -> None:
    """As another version of git, or another level of compression, would pack them."""
    members = members_of(stack.file)
    packs = of_kind(members, UNITS)
    assert packs
    for name in packs:
        folder = tmp_path / name.split("/")[1]
        ok(run_program(["git", "init", "-q", "--bare", str(folder)]))
        (folder / "objects/pack").mkdir(exist_ok=True)
        (folder / f"objects/pack/pack-{'0' * 40}.pack").write_bytes(members[name])
        ok(run_program(["git", "-C", str(folder), "index-pack", f"objects/pack/pack-{'0' * 40}.pack"]))
        members[name] = _repacked(folder)
    other = tmp_path / "other.tar"
    other.write_bytes(sealed(members))
    assert other.read_bytes() != stack.file.read_bytes()
    assert opened(other).facts.id == stack.made.id
    env = {**clean_env(tmp_path), "NPU_RL_STORE": str(tmp_path / "none")}
    ok(run_cli(["setup", "-m", stack.manifest, "-w", tmp_path / "ws", "--bundle", other], env))


def _repacked(folder: Path) -> bytes:
    words = ["git", "-C", str(folder), "-c", "pack.compression=0", "repack", "-q", "-F", "-a", "-d", "-k"]
    ok(run_program(words))
    (pack,) = (folder / "objects/pack").glob("pack-*.pack")
    return pack.read_bytes()


def test_a_workspace_from_a_bundle_is_the_one_of_the_lock(stack: MadeStack, tmp_path: Path) -> None:
    env = {**clean_env(tmp_path), "NPU_RL_STORE": str(tmp_path / "none")}
    shutil.copytree(stack.manifest.parent, tmp_path / "project")
    (tmp_path / "project" / "fix.patch").unlink()  # its text comes from the bundle
    words = [
        "-m",
        f"{tmp_path}/project/m.yaml",
        "-w",
        f"{tmp_path}/ws",
        "--bundle",
        str(stack.file),
        "--json",
    ]
    done = json.loads(ok(run_cli(["setup", *words], env)).stdout)
    lock = lock_model.read(lock_model.lock_path(stack.manifest))
    assert (done["tree"], done["lock"], done["bytes_received"]) == (lock.tree, lock_model.digest_of(lock), 0)
    assert done["components"]["up"]["source"] == "m.tar"
    ok(run_cli(["verify", "--deep", "-w", tmp_path / "ws", "--expect", done["lock"]], env))
    assert (tmp_path / "ws/code/pkg/a.py").read_text() == "one\n2\n"
    assert (tmp_path / "ws/src/up/docs/x").exists()
    assert not (tmp_path / "none").exists() and not list((tmp_path / "tmp").glob("npu-rl-bundle-*"))
    again = json.loads(ok(run_cli(["setup", *words], env)).stdout)
    assert again["changed"] is False


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare")
def test_no_network_is_needed(stack: MadeStack, tmp_path: Path) -> None:
    if run_program([*UNSHARE, "true"]).returncode:
        pytest.skip("this host permits no network namespace")
    import sys

    env = {**clean_env(tmp_path), "NPU_RL_STORE": str(tmp_path / "none")}
    program = [*UNSHARE, sys.executable, "-m", "npu_rl"]
    place = str(tmp_path / "ws")
    setup = [*program, "setup", "-m", str(stack.manifest), "-w", place, "--bundle", str(stack.file)]
    ok(run_program(setup, env=env))
    assert "equals its lock" in ok(run_program([*program, "verify", "--deep", "-w", place], env=env)).stdout


def test_another_lock_is_refused(stack: MadeStack, tmp_path: Path) -> None:
    env = {**clean_env(tmp_path), "NPU_RL_STORE": str(tmp_path / "none")}
    other = stack.manifest.with_name("other.yaml")
    words = ["setup", "-m", str(other), "-w", f"{tmp_path}/ws", "--bundle", str(stack.file)]
    done = run_cli(words, env)
    assert_told(done, "The bundle is made for another lock", "m ")
    assert not (tmp_path / "ws").exists()
    done = run_cli(["setup", "--bundle", stack.file], env, tmp_path)
    assert_told(done, "Name the manifest to set up", "manifests/m/m.yaml", code=2)
    done = run_cli(["setup", "-m", other, "--verify-with", "x"], env, tmp_path)
    assert_told(done, "--verify-with needs --bundle", code=2)


def test_objects_that_a_pack_lacks_are_missed(stack: MadeStack, tmp_path: Path) -> None:
    """A pack of somebody who can make the rest fit: git finds what it lacks, and its index is not asked for names."""
    members = members_of(stack.file)
    name = of_kind(members, UNITS)[0]
    empty = b"PACK" + (2).to_bytes(4, "big") + bytes(4)
    import hashlib

    members[name] = empty + hashlib.sha1(empty, usedforsecurity=False).digest()
    bad = tmp_path / "bad.tar"
    bad.write_bytes(sealed(members))
    lock = lock_model.read(lock_model.lock_path(stack.manifest))
    for content in (members[name], b"no pack", zlib.compress(b"x") * 9):
        bad.write_bytes(sealed({**members, name: content}))
        with open_bundle(bad) as bundle, pytest.raises(BundleError, match="A unit of the bundle"):
            with bundled_store(bundle, lock):
                raise AssertionError("it was taken")


def test_several_manifests_with_their_parents(stack: MadeStack, tmp_path: Path) -> None:
    made = stack.bundle(tmp_path / "both.tar", "m", "other")
    members = members_of(tmp_path / "both.tar")
    assert {"manifests/other/other.yaml", "manifests/other/parts/base.yaml"} < members.keys()
    assert made.id != stack.made.id
    unpacked = tmp_path / "start"
    for name, data in members.items():
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_bytes(data)
    env = {**clean_env(tmp_path), "NPU_RL_STORE": str(tmp_path / "none")}
    for name in ("m", "other"):
        manifest = unpacked / f"manifests/{name}/{name}.yaml"
        words = [
            "setup",
            "-m",
            str(manifest),
            "-w",
            f"{tmp_path}/ws-{name}",
            "--bundle",
            f"{tmp_path}/both.tar",
        ]
        done = ok(run_cli(words, env))
        assert "note:" not in done.stderr


def test_what_exists_is_not_written_over(stack: MadeStack, tmp_path: Path) -> None:
    (tmp_path / "m.tar").write_bytes(b"mine")
    with pytest.raises(UsageError, match="The file exists"):
        stack.bundle(tmp_path / "m.tar")
    with pytest.raises(UsageError, match="folder does not exist"):
        stack.bundle(tmp_path / "nowhere/m.tar")
    with pytest.raises(UsageError, match="Two of the manifests"):
        stack.bundle(tmp_path / "n.tar", "m", "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m.tar"]


def test_its_own_size_is_small(stack: MadeStack) -> None:
    """Each file adds a header and what fills its last block; 1.02 is for those that are worth a bundle."""
    sizes = [len(data) for data in members_of(stack.file).values()]
    assert stack.file.stat().st_size <= sum(sizes) + 1023 * len(sizes) + 1024


def test_show_tells_and_prints_two_lines(stack: MadeStack, tmp_path: Path) -> None:
    env = clean_env(tmp_path)
    shown = ok(run_cli(["bundle", "show", stack.file], env, tmp_path)).stdout
    assert f"id        {stack.made.id}" in shown and "signed    no" in shown
    lines = shown.partition("git:\n")[2].splitlines()
    assert len(lines) == 2 and lines[1].startswith(
        ". npu-rl-env/bin/activate && npu-rl setup --manifest npu-rl-start/manifests/m/"
    )
    found = json.loads(ok(run_cli(["bundle", "show", stack.file, "--json"], env)).stdout)
    assert found["start"] == lines and found["id"] == stack.made.id
    unpack = lines[0].partition(" && ")[0].replace("python3.11", "python3")
    ok(run_program(["sh", "-c", unpack], env=env, cwd=tmp_path))
    assert (tmp_path / "npu-rl-start/manifests/m/m.lock.json").exists()
    assert sorted(path.name for path in (tmp_path / "npu-rl-start").iterdir()) == ["manifests", "npu-rl"]


def test_packages_of_the_host_are_named_where_the_others_are(stack: MadeStack, tmp_path: Path) -> None:
    members = members_of(stack.file)
    wheels = {"wheels/one-1-py3-none-any.whl": b"1", "npu-rl/uv-1-py3-none-any.whl": b"2"}
    (tmp_path / "w.tar").write_bytes(sealed({**members, **wheels}))
    env = clean_env(tmp_path)
    found = json.loads(ok(run_cli(["bundle", "show", tmp_path / "w.tar", "--json"], env)).stdout)
    assert found["of_the_host"] == [] and len(found["start"]) == 3
    assert found["start"][0].endswith("--find-links npu-rl-start/npu-rl 'npu-rl[uv]==0.2.0'")
    for loaded in (load_manifest("quickstart"), load_manifest("today")):
        bundled = lock_model.read(lock_model.lock_path(loaded.path))
        assert named_host_requirements(bundled.host, bundled.requirements) == host_requirements(
            loaded.manifest
        )
    assert [str(one) for one in host_requirements(load_manifest("quickstart").manifest).values()] == [
        "torch==2.13.0"
    ]


def test_another_python_is_refused_with_the_options_of_this_command(stack: MadeStack, tmp_path: Path) -> None:
    words: list[str | Path] = ["bundle", "create", "quickstart", "-o", tmp_path / "q.tar", "--python", "3.7"]
    assert_told(
        run_cli(words, clean_env(tmp_path)), "Unsupported host: Python 3.7", "--python and --platform", code=2
    )
