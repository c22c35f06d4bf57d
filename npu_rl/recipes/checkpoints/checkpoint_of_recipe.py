"""A recipe's requirements on a checkpoint folder: model, format and transformers version."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from npu_rl.common.errors import RecipeError
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.checkpoints.recipe_layout import recipe_layout
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.sizing.model_config import differing_sizes
from npu_rl.weights.checkpoints.checkpoint_findings import CheckedFolder
from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import CONFIG, listed


@dataclass(frozen=True)
class CheckpointOfRecipe:
    """Compares a checked folder with a recipe, and adds findings to the folder's."""

    loaded: LoadedRecipe

    def compare_architecture(self, checked: CheckedFolder) -> None:
        """Report sizes in config.json that differ from the recipe's `model.architecture`."""
        recipe = self.loaded.recipe
        # a recipe with the trainer's own keys has no section `model`
        name = None if recipe.has_own_keys else recipe.model.architecture
        if checked.checkpoint is None or name is None:
            return
        place = checked.folder / CONFIG
        try:
            other = differing_sizes(name, checked.checkpoint.config)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            checked.error("weights-config-shape", place, f"the model's sizes can't be read: {error!r}")
            return
        if other:
            message = f"it is not model.architecture {name} of {recipe.name}: {listed(other)}"
            fix = "check the folder of that model, or set model.architecture"
            checked.error("weights-architecture", place, message, fix)

    def compare_transformers(self, checked: CheckedFolder, version: str) -> None:
        """Report if the interpreter's transformers isn't the version that the stack contains or requires."""
        from packaging.requirements import Requirement

        from npu_rl.stack.manifest.load_manifest import load_manifest

        manifest = load_manifest(self.loaded.manifest).manifest
        for name, component in manifest.components.items():
            if component.dist is not None and component.dist.name == "transformers":
                message = (
                    f"the tensors are compared with transformers {version} of the interpreter, and the tree of "
                    f"{self.loaded.recipe.manifest} has its own, {component.dist.version} (component {name})"
                )
                checked.add("weights-transformers", Severity.NOTE, checked.folder, message)
                return
        for text in manifest.requirements:
            wanted = Requirement(text)
            if wanted.name == "transformers" and not wanted.specifier.contains(version, prereleases=True):
                stack = self.loaded.recipe.manifest
                message = f"the tensors are compared with transformers {version}, and {stack} has {text}"
                fix = "name the interpreter to train in: --python PATH"
                checked.add("weights-transformers", Severity.NOTE, checked.folder, message, fix)

    def compare_format(self, checked: CheckedFolder, ranks: Sequence[int]) -> None:
        """Report if the recipe's trainer loads another format, or a legacy checkpoint with other ranks.

        Args:
            ranks: Sizes of the tensor, pipeline and expert groups that the files are of, without sizes of 1.
        """
        name = self.loaded.recipe.name
        try:
            wanted = recipe_layout(self.loaded)
        except RecipeError as error:
            checked.error("weights-format", checked.folder, f"it is a checkpoint of Megatron. {error.what}")
            return
        stages = len(wanted.ranks.layers) or wanted.ranks.stages
        sizes = (wanted.ranks.tensor, stages, wanted.ranks.expert)
        numbers = [sizes[0], *(size for size in sizes[1:] if size > 1)]
        if wanted.format != checked.format:
            message = f"it is {checked.format}, and the trainer of {name} loads {wanted.format}"
        elif wanted.format == "legacy" and numbers != list(ranks):
            layout = "TP{} PP{} EP{}".format(*sizes)
            message = (
                f"it has the files of {_times(ranks)} ranks, and {name} needs {_times(numbers)} ({layout})"
            )
        else:
            return
        fix = f"npu-rl weights convert IN OUT --layout {name}"
        checked.error("weights-format", checked.folder, message, fix)


def _times(numbers: Sequence[int]) -> str:
    product = " x ".join(map(str, numbers))
    return product if len(numbers) < 2 else f"{product} = {math.prod(numbers)}"
