"""The locks of packages beside the bundled manifests: each fits its manifest, and names PyPI's own files only."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from npu_rl.common.bundled import bundled_manifests
from npu_rl.stack.manifest.load_manifest import LoadedManifest, load_manifest
from npu_rl.stack.pylocks.package_sets import package_set
from npu_rl.stack.pylocks.pylock_file import Pylock, dump_pylock, is_of_pypi, read_pylock
from npu_rl.stack.pylocks.pylock_targets import Target, pylock_path, targets
from npu_rl.stack.requirements.environments import applies
from tests.support import ROOT, index_env, run_program

NAME = re.compile(r"pylock\.[^.]+\.toml")  # PEP 751
LARGEST_SUM = 6_000_000


def of_manifest(name: str) -> Iterator[tuple[LoadedManifest, Target]]:
    loaded = load_manifest(name)
    for target in targets(loaded.manifest.device, loaded.manifest.host.python):
        yield loaded, target


PAIRS = {
    f"{name}-{target.shown}": (loaded, target)
    for name in bundled_manifests()
    for loaded, target in of_manifest(name)
}


@cache
def locked(pair: str) -> tuple[LoadedManifest, Pylock]:
    loaded, target = PAIRS[pair]
    return loaded, read_pylock(pylock_path(loaded.path, target))


def test_a_file_for_each_host_and_no_other() -> None:
    folder = ROOT / "manifests"
    there = {path.name for path in folder.glob("pylock*")}
    assert there == {pylock_path(loaded.path, target).name for loaded, target in PAIRS.values()}
    assert all(NAME.fullmatch(name) for name in there)
    assert sum(path.stat().st_size for path in folder.glob("pylock*")) < LARGEST_SUM
    machines = {pair.rpartition("-")[2] for pair in PAIRS if not pair.startswith("pai-")}
    assert machines == {"aarch64", "x86_64"}
    assert {pair.rpartition("-")[2] for pair in PAIRS if pair.startswith("pai-")} == {"x86_64"}


@pytest.mark.parametrize("pair", PAIRS)
def test_it_is_what_its_manifest_requires(pair: str) -> None:
    loaded, pylock = locked(pair)
    packages = package_set(loaded)
    assert pylock.made_from == packages.digest()
    assert (pylock.manifest, pylock.target) == (loaded.manifest.name, PAIRS[pair][1])
    versions = {one.name: one.version for one in pylock.packages}
    assert len(versions) == len(pylock.packages) > 70
    assert not versions.keys() & set(pylock.left_out)
    environment = pylock.target.environment()
    assert bool(packages.of_torch) == (loaded.manifest.device != "cuda")
    for text in (*packages.requirements, *packages.of_torch):
        wanted = Requirement(text)
        found = versions.get(canonicalize_name(wanted.name))
        if applies(wanted.marker, environment):
            assert found is not None, f"{text} is missing"
            assert wanted.specifier.contains(found, prereleases=True), f"{text}: {found}"


@pytest.mark.parametrize("pair", PAIRS)
def test_its_files_are_pypis_have_hashes_and_fit_the_host(pair: str) -> None:
    loaded, pylock = locked(pair)
    text = pylock_path(loaded.path, pylock.target).read_text()
    assert dump_pylock(pylock) == text  # so nothing else is in it
    assert set(re.findall(r"https?://[^/\"]+", text)) == {"https://files.pythonhosted.org"}
    fitting = tags(pylock.target)
    for package in pylock.packages:
        for file in package.files:
            assert is_of_pypi(file.url) and re.fullmatch("[0-9a-f]{64}", file.sha256) and file.size
        for wheel in package.wheels:
            name, version, _, of_wheel = parse_wheel_filename(wheel.name)
            assert (name, str(version)) == (package.name, package.version)
            assert of_wheel & fitting, wheel.name


def tags(target: Target) -> frozenset[Tag]:
    """What pip installs on a host with its glibc."""
    version = tuple(map(int, target.python.split(".")))
    platforms = [f"manylinux_2_{minor}_{target.machine}" for minor in range(int(target.glibc[2:]), 4, -1)]
    platforms += [f"manylinux{old}_{target.machine}" for old in ("2014", "2010", "1")]
    platforms.append(f"linux_{target.machine}")
    interpreter = f"cp{version[0]}{version[1]}"
    return frozenset(
        [
            *cpython_tags(version, platforms=platforms),
            *compatible_tags(version, interpreter=interpreter, platforms=platforms),
        ]
    )


def test_what_the_host_and_the_tree_have_is_left_out() -> None:
    for pair in PAIRS:
        left_out = locked(pair)[1].left_out
        assert {"torch", "torch-npu", "torchvision", "torchaudio", "triton-ascend"} <= set(left_out)
    plugin = locked("verl-npu-plugin-py310-aarch64")[1]
    assert "transformers" in plugin.left_out  # a component, with a commit between two releases
    pai = locked("pai-megatron-deepseek-v3-py312-x86_64")[1]
    assert {"apex", "flash-attn"} <= set(pai.left_out)  # its document has them from an address of its own
    assert "vllm" in {one.name for one in pai.packages}  # not a component there


@pytest.mark.pypi
@pytest.mark.second
def test_they_are_made_again_as_they_are(tmp_path: Path) -> None:
    """Of one manifest, as of the moment in its files."""
    require_current(tmp_path, "deepseek-r1-zero")


@pytest.mark.pypi
@pytest.mark.upstreams
@pytest.mark.usefixtures("upstreams")
def test_all_are_made_again_as_they_are(tmp_path: Path) -> None:
    """It takes two minutes, so it goes with the long tests."""
    assert require_current(tmp_path).count(": current\n") == len(PAIRS)


def require_current(folder: Path, *names: str) -> str:
    words = [sys.executable, ROOT / ".ci/maintenance/pylocks", "--check", *names]
    done = run_program(words, env=index_env(folder), timeout=900)
    if "uv is not installed" in done.stderr:
        pytest.skip("needs uv: pip install '.[test]'")
    if done.returncode and "stale" not in done.stdout and os.environ.get("NPU_RL_REQUIRE_PYPI") != "1":
        pytest.skip(f"PyPI can't be reached: {done.stderr.strip().splitlines()[-1:]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
