"""Loading of a recipe: its file, what it extends and the command line, merged, typed and checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from npu_rl.common.bundled import bundled_recipes
from npu_rl.common.user_path import user_path
from npu_rl.common.yaml_documents import text_checks
from npu_rl.common.yaml_documents.document import Plain
from npu_rl.common.yaml_documents.document_kind import RECIPE
from npu_rl.common.yaml_documents.extends_chain import read_chain, recorded_names
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.layers import Origin, flatten
from npu_rl.common.yaml_documents.merged_file import checked, merge
from npu_rl.common.yaml_documents.problems import KeyPath, Problem
from npu_rl.recipes.recipe.key_map import suggested_key
from npu_rl.recipes.recipe.overrides import has_own_keys, keep_trainer_nulls, parse_overrides
from npu_rl.recipes.recipe.recipe_paths import own_path_keys, rebase
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_settings import Setting, settings_of
from npu_rl.stack.manifest.manifest_facts import ManifestFacts, manifest_facts


@dataclass(frozen=True)
class ListedRecipe:
    """A row of `recipes list`."""

    name: str
    title: str
    manifest: str
    device: str
    dies: int
    path: Path


def listed_recipes() -> list[ListedRecipe]:
    """Return the bundled recipes."""
    rows = []
    for name, path in bundled_recipes().items():
        one = load_recipe(name).recipe
        rows.append(ListedRecipe(name, one.title, one.manifest, one.device, one.cluster.world, path))
    return rows


@dataclass(frozen=True)
class LoadedRecipe:
    """A valid recipe and where it came from.

    Attributes:
        given, path: The name or path as it was given, and the file, absolute.
        bundled: Whether it was given by name, not as a path.
        files: SHA-256 of the recipe and of each file it extends, by portable name.
        overrides: The arguments of the command line, as they were given.
        digest: SHA-256 of the typed values, whether set in a file or on the command line.
        data, origins: The merged values, as text, and where each key path was set.
        stack: What the workspace was locked with, if that is known; it may extend the recipe's manifest.
        free_name: Whether npu-rl gave the run another name than the recipe's, since a run has that.
    """

    recipe: Recipe
    given: str
    path: Path
    bundled: bool
    files: Mapping[str, str]
    overrides: tuple[str, ...]
    digest: str
    data: Mapping[str, Plain] = field(repr=False)
    origins: Mapping[KeyPath, Origin] = field(repr=False)
    stack: ManifestFacts | None = field(default=None, repr=False)
    free_name: bool = False

    def where(self, *path: str | int) -> str:
        """Return `file:line` or `command line: key=value` of a key, or of the nearest key above it."""
        while path not in self.origins:
            path = path[:-1]
        return str(self.origins[path])

    def finding(
        self,
        rule: str,
        severity: Severity,
        path: KeyPath,
        message: str,
        fix: str = "",
        *,
        key: str = "",
        certain: bool = True,
    ) -> Finding:
        """Return a finding on a key of the recipe, at the place where that is set.

        Args:
            key: The trainer's key.
        """
        return Finding(rule, severity, path, key, message, fix, self.where(*path), certain)

    def locate(self, path: str) -> Path:
        """Return the file or folder that a path of the recipe names: ./ and ../ are relative to the recipe, ~ is home.

        Raises:
            UsageError: If a path begins with ~ and a user that does not exist.
        """
        return self.path.parent / path if text_checks.is_local(path) else user_path(path)

    @property
    def manifest(self) -> str:
        """The manifest as `find_manifest` and `load_manifest` take it: a bundled name or a path."""
        name = self.recipe.manifest
        return str(self.path.parent / name) if text_checks.is_manifest_path(name) else name

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        """Settings of the trainer by key, as `settings_of` returns them."""
        return settings_of(self.recipe)

    @cached_property
    def manifest_facts(self) -> ManifestFacts:
        """Facts of the manifest that the recipe names. Raises ManifestError if it can't be read."""
        return manifest_facts(self.manifest)

    @property
    def manifest_name(self) -> str:
        """Name of the manifest that the recipe names; a bundled one, which is named as its file, is not read."""
        own = text_checks.is_manifest_path(self.recipe.manifest)
        return self.manifest_facts.name if own else self.recipe.manifest

    @property
    def stack_facts(self) -> ManifestFacts:
        """Facts of the manifest that a run uses: the workspace's if there is one, else the recipe's."""
        return self.stack or self.manifest_facts

    @property
    def stack_name(self) -> str:
        """Name of the manifest that a run uses, for messages."""
        return self.stack.name if self.stack else self.recipe.manifest

    def in_stack(self, stack: ManifestFacts) -> LoadedRecipe:
        """Return the recipe for a workspace of its manifest or of an extending one; unchanged for other workspaces."""
        same = stack.name == self.manifest_name or stack.extends(self.manifest_facts)
        return replace(self, stack=stack) if same else self


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Load a bundled recipe by name, or a file: a text with '/' or ending in .yaml or .yml is a path.

    Args:
        overrides: `key=value` arguments; their local paths are relative to the current folder.

    Raises:
        RecipeError: If a file can't be read, or is invalid; then with every fault.
        UsageError: If an argument is invalid.
    """
    given = parse_overrides(overrides)
    chain = read_chain(RECIPE, name_or_path)
    for file in chain:
        keep_trainer_nulls(file.document)
    problems: list[Problem] = []
    own_paths = own_path_keys(file.document.data for file in chain)
    root = merge(chain, partial(rebase, own=own_paths), problems)
    paths_of_own_keys = own_paths if has_own_keys(root) else None
    for override in given:
        root = override.apply(root, problems, paths_of_own_keys)
    layer = flatten(root)
    order = [*(file.document.name for file in chain), *(override.origin for override in given)]
    recipe = checked(Recipe, layer, problems, RECIPE, order, suggested_key)
    return LoadedRecipe(
        recipe=recipe,
        given=name_or_path,
        path=chain[0].path,
        bundled=chain[0].bundled,
        files=dict(recorded_names(RECIPE, chain)),
        overrides=tuple(overrides),
        digest=recipe_digest(recipe),
        data=layer.data,
        origins=layer.origins,
    )


def recipe_digest(recipe: Recipe) -> str:
    """Return the SHA-256 of a recipe's typed values: 7 and "7" differ, 1e-6 and 0.000001 don't."""
    content = recipe.model_dump(by_alias=True, exclude_unset=True, exclude={"extends"})
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
