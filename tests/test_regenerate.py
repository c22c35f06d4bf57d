"""`.ci/regenerate` finds what is stale, and locks again without upstreams where no pin has changed."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from npu_rl.common.errors import LockError
from npu_rl.stack.lock import lock_model
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.stack.resolve.resolve_lock import rebuild_lock
from npu_rl.stack.resolve.upstream_repository import Context
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.progress import Silent
from npu_rl.stack.store import Store
from tests.support import ROOT, assert_told, clean_env, ok, run_cli, run_program

PARTS = (".ci", "npu_rl", "manifests", "patchsets", "recipes", "docs")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for part in PARTS:
        shutil.copytree(ROOT / part, tmp_path / "checkout" / part)
    return tmp_path / "checkout"


def regenerate(checkout: Path, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**clean_env(tmp_path), "PYTHONPATH": ""}
    return run_program([sys.executable, checkout / ".ci/regenerate", *words], env=env, cwd=tmp_path)


PAGES = {
    "docs/environment.md": (
        "npu_rl/common/environment_variables.py",
        "Seconds without data",
        "Seconds of silence",
    ),
    "npu_rl/recipes/faults/catalogue.json": (
        "npu_rl/recipes/faults/catalogue/dp-engines-never-meet.yaml",
        "takes itself",
        "mistakes itself",
    ),
    "docs/troubleshooting.md": (
        "npu_rl/training/monitor/symptoms.yaml",
        "A device ran out of memory.",
        "A device has no memory left.",
    ),
    "docs/commands.md": (
        "npu_rl/cli/workspace.py",
        "Read every byte instead of",
        "Read all bytes instead of",
    ),
    "docs/faults.md": (".ci/fault_page.py", "# Known faults", "# All known faults"),
    "patchsets/README.md": ("npu_rl/stack/patches/patch_table.py", "# Patches", "# All patches"),
    "manifests/manifest.schema.json": (
        "npu_rl/stack/manifest/schema.py",
        "Version of the manifest's",
        "The manifest's",
    ),
    "recipes/recipe.schema.json": (
        "npu_rl/recipes/recipe/schema.py",
        "Version of the recipe's",
        "The recipe's",
    ),
}


@pytest.mark.second
def test_a_change_of_a_source_makes_its_page_stale(checkout: Path, tmp_path: Path) -> None:
    for source, before, after in PAGES.values():
        text = (checkout / source).read_text()
        assert before in text
        (checkout / source).write_text(text.replace(before, after))
    stale = regenerate(checkout, tmp_path, "--check", *PAGES)
    assert stale.returncode == 1
    for name, (_, _, after) in PAGES.items():
        assert f"{name}: stale" in stale.stdout
        assert after in stale.stdout
        assert (checkout / name).read_text() == (ROOT / name).read_text()
    written = ok(regenerate(checkout, tmp_path, *PAGES))
    for name, (_, _, after) in PAGES.items():
        assert f"{name}: written" in written.stdout
        assert after in (checkout / name).read_text()
    ok(regenerate(checkout, tmp_path, "--check", *PAGES))


def test_each_message_of_troubleshooting_has_a_heading_that_tells_it() -> None:
    """Three were empty: their messages end with an address or an id."""
    titles = re.findall(
        r"^#### `(.*)`$", (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"), re.M
    )
    assert len(titles) > 40 and [title for title in titles if len(re.findall(r"\w", title)) < 5] == []


def test_no_cause_of_troubleshooting_has_an_unfilled_place() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    assert re.findall(r"\{\w+\}", re.sub(r"`[^`]*`", "", page)) == []


def test_commands_and_troubleshooting_are_current(tmp_path: Path) -> None:
    ok(regenerate(ROOT, tmp_path, "--check", "docs/commands.md", "docs/troubleshooting.md"))


def test_a_file_that_is_not_generated_is_refused(tmp_path: Path) -> None:
    assert_told(regenerate(ROOT, tmp_path, "--check", "README.md"), "not a generated file: README.md", code=2)


def test_a_lock_of_a_changed_manifest_is_stale(checkout: Path, tmp_path: Path) -> None:
    manifest = checkout / "manifests/quickstart.yaml"
    manifest.write_text(manifest.read_text().replace("title: ", "title: Another. ", 1))
    done = regenerate(checkout, tmp_path, "--check", "--offline", "manifests/quickstart.lock.json")
    assert done.returncode == 1
    assert "stale: quickstart has changed since its lock was made" in done.stdout


# -- a lock built again from its pins ------------------------------------------------------------------


@pytest.fixture
def stack(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A manifest of one component with a patch, locked; its upstream is gone by now."""
    upstream = tmp_path / "upstream"
    (upstream / "lib").mkdir(parents=True)
    (upstream / "lib/a.py").write_text("one = 1\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(upstream)]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True, env=clean_env(tmp_path))
    head = ok(run_program([*git, "rev-parse", "HEAD"])).stdout
    patches = tmp_path / "patches"
    patches.mkdir()
    (patches / "series").write_text("0001-two.patch\n")
    (patches / "0001-two.patch").write_text(
        "Two\n---\ndiff --git a/lib/a.py b/lib/a.py\n--- a/lib/a.py\n+++ b/lib/a.py\n@@ -1 +1 @@\n-one = 1\n+one = 2\n"
    )
    manifest = tmp_path / "m.yaml"
    manifest.write_text(
        "schema: 1\nname: m\ntitle: A test\ndevice: cpu\ncomponents:\n  a:\n"
        f"    sources: [{{git: file://{upstream}}}]\n    ref: {head.strip()}\n"
        "    take: [{from: lib, to: lib}]\n    patches: [{path: ./patches}]\n"
    )
    env = clean_env(tmp_path)
    ok(run_cli(["lock", "--manifest", str(manifest)], env))
    shutil.rmtree(upstream)
    return manifest, env


def _context(manifest: Path, env: dict[str, str]) -> Context:
    network = Network(offline=True)
    return Context(Store(Path(env["NPU_RL_STORE"])), network, Silent(), lambda _: None, manifest.parent)


def test_pins_stay_and_a_changed_patch_is_recorded(stack: tuple[Path, dict[str, str]]) -> None:
    manifest, env = stack
    earlier = lock_model.read(lock_model.lock_path(manifest))
    context = _context(manifest, env)
    assert rebuild_lock(context, load_manifest(str(manifest)), earlier) == earlier
    patch = manifest.parent / "patches/0001-two.patch"
    patch.write_text(patch.read_text().replace("one = 2", "one = 3"))
    again = rebuild_lock(context, load_manifest(str(manifest)), earlier)
    assert again.tree != earlier.tree
    assert again.components["a"].pin == earlier.components["a"].pin
    assert again.components["a"].tree == earlier.components["a"].tree
    assert again.components["a"].patches[0].sha256 != earlier.components["a"].patches[0].sha256


def test_a_manifest_that_has_changed_is_refused(stack: tuple[Path, dict[str, str]]) -> None:
    manifest, env = stack
    earlier = lock_model.read(lock_model.lock_path(manifest))
    other = dataclasses.replace(earlier, manifest_digest="0" * 64)
    with pytest.raises(LockError, match="has changed since its lock was made"):
        rebuild_lock(_context(manifest, env), load_manifest(str(manifest)), other)
