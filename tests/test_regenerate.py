"""`.ci/regenerate` finds what is stale, and locks again without upstreams where no pin has changed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


GENERATED = (
    *("docs/environment.md", "docs/troubleshooting.md", "docs/commands.md", "docs/faults.md"),
    *("npu_rl/recipes/faults/catalogue.json", "patchsets/README.md"),
    *("manifests/manifest.schema.json", "recipes/recipe.schema.json"),
)


def test_each_generated_file_is_current(tmp_path: Path) -> None:
    ok(regenerate(ROOT, tmp_path, "--check", *GENERATED))


def test_a_change_of_a_source_makes_its_page_stale(checkout: Path, tmp_path: Path) -> None:
    name, source = "patchsets/README.md", checkout / "npu_rl/stack/patches/patch_table.py"
    source.write_text(source.read_text().replace("# Patches", "# All patches"))
    stale = regenerate(checkout, tmp_path, "--check", name)
    assert stale.returncode == 1 and f"{name}: stale" in stale.stdout
    assert (checkout / name).read_text() == (ROOT / name).read_text()
    ok(regenerate(checkout, tmp_path, name))
    assert (checkout / name).read_text().startswith("# All patches")


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
