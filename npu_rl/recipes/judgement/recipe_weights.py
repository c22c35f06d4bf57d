"""Findings of `plan` and `train` on a recipe's weights before a run starts. Reads headers only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.recipes.checkpoints.weight_commands import WeightCommands
from npu_rl.recipes.judgement.missing_files import local_path
from npu_rl.recipes.trainer_code.bridged_actor import ONLY_BRIDGES

if TYPE_CHECKING:
    from npu_rl.recipes.judgement.judgement import Judgement
    from npu_rl.recipes.recipe.load_recipe import LoadedRecipe

# clean-model-config has them for Megatron. Bridges take both, and vLLM may refuse the quantization (quantized-model).
_OF_THE_PLAN = ("weights-config-quantization", "weights-config-mtp")


def with_weights(judgement: Judgement, loaded: LoadedRecipe) -> Judgement:
    """Add findings on the weights in `model.path` to a judgement, if the trainer will load them.

    A folder that is not on this machine, or that has no safetensors, is skipped. The findings that weights or a
    checkpoint are missing, or not clean, get the commands that make them.
    """
    folder = _weights_folder(loaded)
    commands = WeightCommands(loaded, judgement.plan.disk if judgement.plan else None)
    keys = tuple(commands.named_in(found, folder) for found in judgement.key_findings)
    plan = tuple(commands.named_in(found, folder) for found in judgement.plan_findings)
    if keys != judgement.key_findings or plan != judgement.plan_findings:
        judgement = replace(judgement, key_findings=keys, plan_findings=plan)
    if folder is None or (loaded.recipe.megatron and loaded.recipe.model.checkpoint is not None):
        return judgement
    known = {found.rule for found in judgement.findings}
    bridged = judgement.plan is not None and judgement.plan.facts.upstream.has(ONLY_BRIDGES)
    found = _findings(folder, loaded, known, bridged)
    return replace(judgement, key_findings=(*judgement.key_findings, *found))


def _findings(folder: Path, loaded: LoadedRecipe, known: Iterable[str], bridged: bool) -> Iterator[Finding]:
    from npu_rl.weights.checkpoints.checkpoint_findings import check_folder

    checked = check_folder(folder)
    for found in checked.findings:
        said = found.rule in _OF_THE_PLAN and (bridged or ("clean-model-config" in known and not checked.fp8))
        if found.severity is not Severity.NOTE and not said:
            message = f"{found.where}: {found.message}"
            yield replace(found, path=("model", "path"), where=loaded.where("model", "path"), message=message)


def _weights_folder(loaded: LoadedRecipe) -> Path | None:
    """Return the local folder of the Hugging Face weights that will be loaded, or None."""
    recipe = loaded.recipe
    if recipe.has_own_keys:  # it has no section `model`
        return None
    model = recipe.model
    if recipe.megatron and model.load_weights is False:
        return None
    folder = local_path(loaded, model.path)
    try:
        return folder if folder is not None and any(folder.glob("*.safetensors*")) else None
    except OSError:  # judged with the other missing files
        return None
