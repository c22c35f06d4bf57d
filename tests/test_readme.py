"""The README is part of the product: its two promises hold, and it names everything that is bundled."""

from __future__ import annotations

import re
from functools import cache

import pytest

from npu_rl.common.bundled import bundled_manifests, bundled_recipes
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.stack.manifest.load_manifest import load_manifest
from tests.support import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
SET_UP = "python3 -m venv .venv && .venv/bin/pip install -q"


def test_ci_runs_the_test_command_it_names() -> None:
    tests = "python -m pytest -q -n 2"
    assert f"{SET_UP} '.[test]' && .venv/bin/{tests}\n" in README
    assert tests in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_one_line_sets_up_and_trains() -> None:
    setup, train = (
        ".venv/bin/npu-rl setup --manifest quickstart",
        ".venv/bin/npu-rl train recipes/quickstart.yaml",
    )
    assert f"\n{SET_UP} '.[rehearsal]' && {setup} && {train}\n" in README


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_it_names_every_bundled_manifest(page: str) -> None:
    names_each("manifests", (ROOT / page).read_text(encoding="utf-8"))


@cache
def bundled_clusters() -> dict[str, list[str]]:
    """The smallest and largest cluster of each bundled manifest's recipes, as the README writes it."""
    found: dict[str, dict[int, str]] = {}
    for name in bundled_recipes():
        recipe = load_recipe(name).recipe
        manifest = load_manifest(recipe.manifest)
        dies, per_card = recipe.cluster.nodes * recipe.cluster.dies, recipe.cluster.dies_per_card
        npu = f"{dies // 2} Atlas A3 ({dies} dies)" if per_card == 2 else f"{dies} Atlas A2"
        shown = {"npu": npu, "cuda": f"{dies} GPUs", "cpu": "any CPU"}[manifest.manifest.device]
        found.setdefault(manifest.manifest.name, {})[dies] = shown
    return {name: sorted({sizes[min(sizes)], sizes[max(sizes)]}) for name, sizes in found.items()}


def stack_row(page: str, manifest: str) -> list[str]:
    """The cells of a stack in a README's table."""
    text = (ROOT / page).read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|") and f"`{manifest}`" in line]
    assert len(rows) == 1
    return [cell.strip() for cell in rows[0].strip("|").split("|")]


@pytest.mark.parametrize("manifest", bundled_manifests())
def test_table_of_stacks_has_the_devices_of_the_recipes(manifest: str) -> None:
    sizes = bundled_clusters()[manifest]
    assert sorted(stack_row("README.md", manifest)[2].split(" to ")) == sizes
    chinese = stack_row("README.zh-CN.md", manifest)[2]
    assert re.findall(r"\d+|A\d", chinese) == re.findall(r"\d+|A\d", stack_row("README.md", manifest)[2])


def test_the_page_on_recipes_names_every_bundled_one() -> None:
    names_each("recipes", (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8"))


def names_each(folder: str, text: str) -> None:
    for path in (ROOT / folder).glob("*.yaml"):
        assert "." in path.stem or re.search(rf"^\|.*`{path.stem}`", text, re.MULTILINE), path


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_sizes_it_gives_are_those_of_the_pinned_torch(page: str) -> None:
    """2.74 GB of wheels for Linux x86-64 and Python 3.11, 0.19 GB of the CPU build: measured for this version."""
    pinned = re.search(r'"torch==([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert pinned and pinned[1] == "2.13.0"
    assert f"torch {pinned[1]}" in (ROOT / page).read_text(encoding="utf-8")
