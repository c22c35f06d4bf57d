"""The Dockerfile of each bundled manifest, and of one's own: what it says, and that hadolint has no finding."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from npu_rl.common.bundled import bundled_manifests
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.stack.requirements.bound_check import HOST_PACKAGES
from npu_rl.stack.requirements.host_requirements import host_requirements
from npu_rl.training.container.dockerfile import dockerfile
from tests.in_process import run_here
from tests.support import ROOT, assert_told, clean_env, ok

DIGEST = "quay.io/ascend/cann@sha256:" + "0123456789abcdef" * 4


def mine(folder: Path, **changes: object) -> Path:
    """`today` as a manifest of one's own, with its lock of packages for one machine."""
    path = folder / "mine.yaml"
    path.write_text(json.dumps({"schema": 1, "name": "mine", "title": "Mine", "extends": "today", **changes}))
    shutil.copy(ROOT / "manifests/pylock.today-py311-aarch64.toml", folder / "pylock.mine-py311-aarch64.toml")
    shutil.copy(ROOT / "manifests/today.lock.json", folder / "mine.lock.json")
    return path


@pytest.mark.second
def test_hadolint_has_no_finding(tmp_path: Path) -> None:
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None and os.environ.get("NPU_RL_REQUIRE_PYPI") != "1":
        pytest.skip("hadolint is not installed (the extra `test` has it)")
    assert program is not None
    files = []
    for name in bundled_manifests():
        files.append(tmp_path / f"{name}.Dockerfile")
        files[-1].write_text(dockerfile(load_manifest(name), name))
    done = subprocess.run([program, "--no-color", *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(files) == 9


@pytest.mark.parametrize("name", bundled_manifests())
def test_the_base_is_the_manifests_image(tmp_path: Path, name: str) -> None:
    done = ok(run_here(["container", "--manifest", name], clean_env(tmp_path)))
    image = load_manifest(name).manifest.host.image
    lines = done.stdout.splitlines()
    assert lines.index("FROM ${BASE}") < 14
    if image is None:
        assert "ARG BASE" in lines and f"{name} names no image" in done.stderr
        assert "--build-arg BASE=IMAGE" in done.stderr and "--build-arg BASE=IMAGE" in done.stdout
    else:
        assert f"ARG BASE={image}" in lines
        assert "a tag, which may move" in done.stderr  # no bundled manifest has a digest yet


def test_an_image_by_its_digest_is_taken_so_and_needs_no_note(tmp_path: Path) -> None:
    path = mine(tmp_path, host={"image": DIGEST})
    done = ok(run_here(["container", "--manifest", path], clean_env(tmp_path)))
    assert f"\nARG BASE={DIGEST}\n" in done.stdout and done.stderr == ""


@pytest.mark.parametrize("image", ["cann 8.5", "cann\\nRUN true", "--platform=x", "$(id)"])
def test_what_is_not_the_name_of_an_image_is_refused(tmp_path: Path, image: str) -> None:
    path = mine(tmp_path, host={"image": image})
    done = run_here(["container", "--manifest", path], clean_env(tmp_path))
    assert_told(done, "is not the name of an image", "mine.yaml:1", code=1)
    assert done.stdout == ""


def test_a_manifest_of_ones_own_comes_with_its_folder(tmp_path: Path) -> None:
    done = ok(run_here(["container", "--manifest", mine(tmp_path)], clean_env(tmp_path)))
    assert "\nCOPY . /wheels/\n" in done.stdout
    assert "setup --manifest /wheels/mine.yaml" in done.stdout
    assert "requirements --manifest /wheels/mine.yaml --python-version 3.11 " in done.stdout


def test_what_the_build_would_miss_is_named_before(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    mine(tmp_path)
    path = mine(tmp_path / "inner", extends="../mine.yaml")
    done = run_here(["container", "--manifest", path], clean_env(tmp_path))
    assert_told(done, "../mine.yaml is outside of the manifest's folder", "one folder", code=1)
    path = mine(tmp_path)
    (tmp_path / "mine.lock.json").unlink()
    assert_told(run_here(["container", "--manifest", path], clean_env(tmp_path)), "mine.lock.json", code=1)


def test_without_a_lock_of_packages_the_command_that_makes_it_is_named(tmp_path: Path) -> None:
    path = mine(tmp_path)
    (tmp_path / "pylock.mine-py311-aarch64.toml").unlink()
    done = run_here(["container", "--manifest", path], clean_env(tmp_path))
    assert_told(done, "not locked", "npu-rl requirements", "--resolve", code=1)
    path = mine(tmp_path, requirements={"append": ["rich==13.9.4"]})
    done = run_here(["container", "--manifest", path], clean_env(tmp_path))
    assert_told(done, "made from other requirements", code=1)


def test_the_version_of_python_is_the_manifests_or_named(tmp_path: Path) -> None:
    env = clean_env(tmp_path)
    done = run_here(["container", "-m", "today", "--python-version", "3.12"], env)
    assert_told(done, "Unsupported host: Python 3.12", "Python 3.11", code=2)
    done = ok(run_here(["container", "-m", "quickstart", "--python-version", "3.12"], env))
    assert "assert v == (3, 12)" in done.stdout and "--python-version 3.12" in done.stdout


def test_nothing_of_this_machine_is_in_it(tmp_path: Path) -> None:
    plain = ok(run_here(["container", "-m", "today"], clean_env(tmp_path))).stdout
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://me:secret@index.example/simple\n")
    env = {
        **clean_env(tmp_path),
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
        "PIP_EXTRA_INDEX_URL": "https://me:secret@other.example/simple",
        "NPU_RL_REWRITE": "https://github.com/=https://me:secret@git.example/",
    }
    assert ok(run_here(["container", "-m", "today"], env)).stdout == plain
    assert "index" not in re.sub(r"(?m)^(#|ARG ).*$", "", plain)
    assert str(ROOT) not in plain and "://" not in plain


@pytest.mark.parametrize("name", bundled_manifests())
def test_each_package_of_the_host_is_installed_at_the_manifests_version(name: str) -> None:
    manifest = load_manifest(name).manifest
    installed = {one.name: str(one.specifier) for one in host_requirements(manifest).values()}
    named = {one.name: str(one.specifier) for one in map(Requirement, manifest.requirements)}
    for field in HOST_PACKAGES:
        package, version = field.replace("_", "-"), getattr(manifest.host, field)
        wanted = f"=={version}" if version else named.get(package)
        assert installed.pop(package, None) == wanted, package
    assert installed == {}
    assert "torch" in host_requirements(manifest)
