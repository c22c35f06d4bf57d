"""`setup --bundle FILE --install`: packages that come from the bundle, without an index."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from npu_rl.stack.bundles.create_bundle import OrderedManifest, create_bundle
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.stack.pylocks.pylock_targets import Target
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.progress import Silent
from tests.bundles.made import members_of, program
from tests.installation.made_packages import HERE, MACHINE, Stack, sdist
from tests.installation.test_setup_install import BUILT, locked
from tests.support import ok, run_cli


@pytest.mark.second
def test_packages_of_a_bundle_are_installed_without_an_index(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.lists("built", *sdist("built", "1.0", BUILT))
    env = locked(stack)
    monkeypatch.setenv("NPU_RL_STORE", env["NPU_RL_STORE"])
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # pip reads it as its opposite: build with what is here
    targets = [Target(HERE, MACHINE, "2.28")]
    ordered = [OrderedManifest(str(stack.manifest), load_manifest(str(stack.manifest)), targets)]
    whole = tmp_path / "whole.tar"
    create_bundle(ordered, whole, Network(), Silent(), program, wheels=True, jobs=1)
    names = {name.rpartition("/")[2] for name in members_of(whole) if name.startswith("wheels/")}
    assert names == {
        "one-2.0-py3-none-any.whl", "two-1.0-py3-none-any.whl", "built-1.0-py3-none-any.whl",
    }  # fmt: skip
    env |= {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "NPU_RL_STORE": str(tmp_path / "none")}
    words: list[str | Path] = ["setup", "-m", stack.manifest, "-w", tmp_path / "w", "--python", stack.python]
    words.append("--install")
    done = ok(run_cli([*words, "--bundle", whole], env))
    assert "3 packages installed" in done.stdout
    assert stack.runs("import one, two, built; print(one.ONE)") == "2"
    assert not list((stack.folder / "machine/tmp").glob("npu-rl-bundle-*"))
    shutil.rmtree(stack.site / "two-1.0.dist-info")
    lacks = run_cli(["verify", "-w", tmp_path / "w", "--imports", "--python", stack.python], env)
    again = f"--workspace {tmp_path}/w --bundle {whole} --install --python {stack.python}"
    assert again in lacks.stdout
