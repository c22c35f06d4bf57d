"""Manifests and recipes, side by side, for what is true of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from npu_rl.common.yaml_documents.document_kind import MANIFEST, RECIPE, DocumentKind
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe, load_recipe
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.stack.manifest.load_manifest import LoadedManifest, load_manifest
from tests.manifest import examples as manifests
from tests.recipes import examples as recipes


@dataclass(frozen=True)
class Examples:
    """One kind of file, its loader and its examples.

    Attributes:
        words, values: Keys and values that occur in files of this kind.
        content: What every valid file has; true unless nothing was read.
        quoted: A value of the minimal example, and the same value with quotes.
        harm: Texts of the minimal example and what makes their lines invalid.
        child: A file that extends the harmed one, with faults of its own.
        faults: File and line of each fault of both.
    """

    kind: DocumentKind
    load: Callable[[str], LoadedManifest | LoadedRecipe]
    content: Callable[[LoadedManifest | LoadedRecipe], object]
    good: list[Path]
    minimal: str
    words: str
    values: list[str]
    quoted: tuple[str, str]
    harm: dict[str, str]
    child: str
    faults: list[tuple[str, int]]


_MANIFEST_KEYS = """schema extends name title device host components tree requirements overrides env runtime verl
sources git pypi drop ref merge base how drift patches path strip directory from take to dist
version entry_points checkout submodules"""
_RECIPE_KEYS = "path make config train test rows function lr dies engine responses strategy kl_loss"

MANIFESTS = Examples(
    kind=MANIFEST,
    load=load_manifest,
    content=lambda loaded: loaded.manifest.components,
    good=manifests.GOOD,
    minimal=manifests.MINIMAL,
    words=_MANIFEST_KEYS,
    values=[manifests.PIN, "refs/heads/main", "a/b", ".", "1", "full", "./x"],
    quoted=("cpu", '"cpu"'),
    harm={"to: verl": "to: /verl", "cpu": "gpu"},
    child="name: -child\ncomponents: {nobody: ~}\n",
    faults=[("m.yaml", 2), ("m.yaml", 3), ("base/base.yaml", 4), ("base/base.yaml", 9)],
)
RECIPES = Examples(
    kind=RECIPE,
    load=load_recipe,
    content=lambda loaded: loaded.recipe.schema_ == 1,
    good=recipes.GOOD,
    minimal=recipes.MINIMAL,
    words=" ".join([*Recipe.model_fields, _RECIPE_KEYS]).replace("schema_", "schema"),
    values=["1", "-1", "1e-6", "./x", "hf", "fsdp", "true", "x.yaml", "1__0"],
    quoted=("1e-3", "'0.001'"),
    harm={"lr: 1e-3": "lr: high"},
    child="name: -child\nenv: ~\n",
    faults=[("m.yaml", 2), ("m.yaml", 3), ("base/base.yaml", 11)],
)
both_kinds = pytest.mark.parametrize(
    "examples", [pytest.param(one, id=one.kind.folder) for one in (MANIFESTS, RECIPES)]
)
