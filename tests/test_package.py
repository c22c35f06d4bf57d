"""What is installed is whole: the wheel carries manifests, patchsets and recipes."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from tests.support import index_env, ok, run_program

ROOT = Path(__file__).resolve().parent.parent


def test_the_installed_package_has_its_data(tmp_path: Path) -> None:
    """Run outside the checkout, so that the installed package is asked and not the sources beside this test."""
    try:
        origin = json.loads(distribution("npu-rl").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        pytest.skip("npu-rl is not installed here; .ci/run installs it as a wheel")
    if origin.get("dir_info", {}).get("editable"):  # hatchling lists _data there, too; the checkout's is used
        pytest.skip("an editable install has its data beside the package; .ci/run installs it as a wheel")
    code = (
        "from npu_rl.common.bundled import bundled_manifests, bundled_patchset, data_root, runtime_root\n"
        "print(data_root()); print(*bundled_manifests()); print(bundled_patchset('verl/0.5.0').is_dir())\n"
        "print((runtime_root() / 'switches.py').is_file())\n"
        "from npu_rl.common.python_roots import INJECTED; print((INJECTED / 'sitecustomize.py').is_file())"
    )
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = ok(run_program([sys.executable, "-c", code], env=env, cwd=tmp_path))
    place, manifests, patchset, runtime, on_path = done.stdout.splitlines()
    assert Path(place).name == "_data"
    assert {"quickstart", "deepseek-v3-cann"} <= set(manifests.split())
    assert (patchset, runtime, on_path) == ("True", "True", "True")
    for kind in ("manifests", "patchsets", "recipes"):
        committed = {p.relative_to(ROOT).as_posix() for p in (ROOT / kind).rglob("*") if p.is_file()}
        installed = {p.relative_to(place).as_posix() for p in Path(place, kind).rglob("*") if p.is_file()}
        installed = {path for path in installed if "/__pycache__/" not in path}  # pip compiles the witnesses
        assert committed == installed


def test_the_extra_is_what_the_quickstart_requires() -> None:
    """One list of versions that were run together, written in two places."""
    from npu_rl.stack.manifest.load_manifest import load_manifest

    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extra = text.partition("rehearsal = [\n")[2].partition("]\n")[0]
    said = [line.strip().strip('",') for line in extra.splitlines()]
    assert said == list(load_manifest("quickstart").manifest.requirements)
    assert all("==" in requirement for requirement in said)


def test_the_extra_for_vllm_is_what_its_rehearsal_requires() -> None:
    from npu_rl.training.host.vllm_environment import REQUIREMENTS

    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extra = text.partition("rehearsal-vllm = [\n")[2].partition("\n]\n")[0]
    said = [line.partition("  #")[0].strip().strip('",') for line in extra.splitlines()]
    for_patches = ["numba==0.68.1", "uvicorn==0.54.0"]  # for the tests of patches, not for a rehearsal
    assert [one for one in said if one not in for_patches] == ["npu-rl[rehearsal]", *REQUIREMENTS]
    assert set(for_patches) <= set(said)


@pytest.mark.rehearsal
@pytest.mark.pypi
def test_the_sdist_installs_and_sets_the_quickstart_up(quickstart_workspace: Path, tmp_path: Path) -> None:
    """As who installs from an index has it: with what the sdist carries, and nothing of the checkout."""
    env = index_env(tmp_path, quickstart_workspace.parent / "store")

    def run(*words: str | Path) -> str:
        return ok(run_program(words, cwd=tmp_path, env=env, timeout=240)).stdout

    def install(*words: str | Path) -> None:
        run(sys.executable, "-m", "pip", *words[:-1], "-q", "--no-compile", words[-1])

    install("install", "--target", "builder", "hatchling")
    build = (
        "import os, sys; sys.path.insert(0, 'builder'); from hatchling.build import build_sdist\n"
        "sys.path[0] = os.path.abspath('builder'); os.chdir(sys.argv[1]); print(build_sdist(sys.argv[2]))"
    )
    sdist = run(sys.executable, "-c", build, ROOT, tmp_path).splitlines()[-1]
    run(sys.executable, "-m", "venv", "--without-pip", "user")
    install("--python", "user/bin/python", "install", sdist)
    npu_rl = tmp_path / "user" / "bin" / "npu-rl"
    run(npu_rl, "setup", "--manifest", "quickstart", "--offline", "-w", "ws")
    body = json.loads(run(npu_rl, "verify", "--deep", "--json", "-w", "ws"))
    assert (
        body["ok"]
        and body["lock"]["tree"] == json.loads((ROOT / "manifests/quickstart.lock.json").read_text())["tree"]
    )
