"""The commands that make a recipe's weights and checkpoint, and the disk space they need."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from npu_rl.common.bounded import read_json
from npu_rl.common.bundled import bundled_recipes
from npu_rl.common.errors import RecipeError, UsageError
from npu_rl.common.yaml_documents.finding import Finding
from npu_rl.data.downloads.known_downloads import of_kind
from npu_rl.recipes.plan.disk_and_tokens import Disk
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.recipe_paths import absolute

# The DeepSeek-V3 that the document of each stack downloads, by the name of `weights get`.
_DEEPSEEK = {
    "deepseek-r1-zero": "deepseek-v3-base",
    "deepseek-v3-cann": "deepseek-v3",
    "pai-megatron-deepseek-v3": "deepseek-v3-0324",
    "pai-megatron-deepseek-v3-mcore-250908": "deepseek-v3-0324",
}
_UNCLEAN = ("clean-model-config", "quantized-model")
_TOKENIZER = ".tokenizer_name_or_path"  # of MindSpeed-RL, whose document gives the model's folder
_REFERENCE = "rl_config.integrated_mode_config.ref_model_load_path"  # of MindSpeed-RL
_LARGEST_CONFIG = 1 << 20


@dataclass(frozen=True)
class WeightCommands:
    """The commands for one recipe; `disk` has the sizes of its model in each format, if they are known."""

    loaded: LoadedRecipe
    disk: Disk | None

    def named_in(self, found: Finding, folder: Path | None) -> Finding:
        """Add the command that makes the weights to a finding on missing or unclean weights; return others unchanged.

        Args:
            folder: The weights in Hugging Face's format, if they are on this machine.
        """
        command = self._of_own_keys(found.trainer_key) if found.rule == "trainer-path" else ""
        if found.rule in ("model-path", "model-checkpoint"):
            model = self.loaded.recipe.model
            source, target = self._absolute(model.path or ""), self._absolute(model.checkpoint or "")
            if found.rule == "model-checkpoint":
                command = self._convert(source, target) if model.path else ""
            elif self._needs_weights():
                command = self._download(source)
        elif found.rule in _UNCLEAN and folder is not None and _is_fp8(folder):
            command = self._cast(str(folder), f"{folder}-BF16")
        return replace(found, fix=f"{command}, or {found.fix}") if command else found

    def _of_own_keys(self, key: str) -> str:
        """Return the command that makes a model folder or checkpoint named by a trainer's own key."""
        recipe = self.loaded.recipe
        tokenizer = next((name for name in recipe.trainer.paths if name.endswith(_TOKENIZER)), "")
        model, given = recipe.overrides.get(tokenizer), recipe.overrides.get(key)
        if not isinstance(model, str) or not isinstance(given, str):
            return ""
        keys = recipe.trainer.keys
        if key == tokenizer:
            return self._download(self._absolute(model))
        loads = {*((keys.checkpoint.load or []) if keys else ()), _REFERENCE}
        return self._convert(self._absolute(model), self._absolute(given)) if key in loads else ""

    def _download(self, target: str) -> str:
        known = of_kind("model")
        if self.disk is None or self.disk.fp8 is None:
            name = Path(target).name.lower()
            size = "" if self.disk is None else f" ({_disk(self.disk.bf16)})"
            return f"npu-rl weights get {name} --to {shlex.quote(target)}{size}" if name in known else ""
        deepseek = self.loaded.recipe.model.architecture == "deepseek-v3"
        name = _DEEPSEEK.get(self.loaded.manifest_name, "") if deepseek else ""
        get = f"npu-rl weights get {name} (prints the download), then " if name else ""
        return get + self._cast(name or "DIR", target)

    def _cast(self, source: str, target: str) -> str:
        command, disk = shlex.join(["npu-rl", "weights", "cast", source, target]), self.disk
        if disk is None or disk.fp8 is None:
            return command
        return f"{command} (reads {disk.fp8 / 1e9:.1f} GB, {_disk(disk.bf16)})"

    def _convert(self, source: str, target: str) -> str:
        from npu_rl.recipes.checkpoints.recipe_layout import recipe_layout

        recipe, disk = self.loaded.recipe, self.disk
        try:
            recipe_layout(self.loaded)
        except RecipeError:  # no converter for this stack
            return ""
        bundled = bundled_recipes().get(recipe.name) == self.loaded.path
        layout = recipe.name if bundled else str(self.loaded.path)
        command = shlex.join(["npu-rl", "weights", "convert", source, target, "--layout", layout])
        return command if disk is None else f"{command} (reads {disk.bf16 / 1e9:.1f} GB, {_disk(disk.dist)})"

    def _needs_weights(self) -> bool:
        """Return whether the missing `model.path` needs weights, not only config.json and tokenizer."""
        model, megatron = self.loaded.recipe.model, self.loaded.recipe.megatron
        given = (model.path, model.checkpoint if megatron else None)
        try:
            there = any(Path(self._absolute(one)).is_dir() for one in given if one)
        except OSError:
            there = False
        return not (there or (megatron and model.load_weights is False))

    def _absolute(self, given: str) -> str:
        try:
            return str(absolute(given, self.loaded.path.parent))
        except UsageError:
            return given


def _disk(size: int) -> str:
    return f"needs {size / 1e9:.1f} GB of disk"


def _is_fp8(folder: Path) -> bool:
    """Return whether config.json declares FP8 weights."""
    try:
        config = read_json(folder / "config.json", _LARGEST_CONFIG)
        return bool(config["quantization_config"]["quant_method"] == "fp8")
    except (OSError, ValueError, KeyError, TypeError):
        return False
