"""Rules on the model's files, the checkpoint."""

from __future__ import annotations

from npu_rl.recipes.plan.rules import pins
from npu_rl.recipes.plan.rules.pins import cann
from npu_rl.recipes.plan.rules.rule import Broken, broken, rule
from npu_rl.recipes.sizing.plan_inputs import PlanInputs
from npu_rl.recipes.trainer_code.bridged_actor import ONLY_BRIDGES
from npu_rl.recipes.trainer_code.citations import Place


@rule(Place(pins.CONVERTER, "please modify the config.json to remove quantization_config", pins.VERL))
def _clean_model_config(facts: PlanInputs) -> Broken:
    unclean = facts.shape.unsupported if facts.megatron and facts.shape else ()
    if unclean and not facts.upstream.has(ONLY_BRIDGES):
        found = ((key, str(value)) for key, value in unclean)
        figures = ", ".join(
            f"{key} is {text if len(text) <= 40 else f'{text[:40]}...'}" for key, text in found
        )
        fix = (
            "remove quantization_config and set num_nextn_predict_layers to 0 in the bf16 model's config.json"
        )
        yield broken(figures, fix, "model.path")


@rule(certain=False)
def _checkpoint_on_every_node(facts: PlanInputs) -> Broken:
    """Check for a path that depends on a worker's folder; ./, ../ and ~ are made absolute before the run."""
    nodes, given = facts.recipe.cluster.nodes, facts.recipe.model.checkpoint or "/"
    if facts.megatron and nodes > 1 and not given.startswith(("/", "./", "../", "~")) and "://" not in given:
        fix = "name it by an absolute path that is the same, on shared storage, on every node"
        yield broken(f"{given} has to be the same on {nodes} nodes", fix, "model.checkpoint")


@rule(
    (
        Place(pins.WORKERS, "load_mcore_dist_weights(\n", pins.UNPATCHED),
        Place(ONLY_BRIDGES.file, "load_mcore_dist_weights(\n", pins.SERVERS),
    ),
    certain=False,
)
def _checkpoint_layout(facts: PlanInputs) -> Broken:
    yield from _lacking(facts, "dist checkpoint (torch_dist)", ".metadata", "common.pt", "metadata.json")


# What use_dist_checkpointing loads there is Megatron-LM's own format before dist checkpoints; without the file it
# "will not load any checkpoints and will start from random" (megatron/training/checkpointing.py:548@core_r0.8.0).
@rule(cann("workers/megatron_workers.py", "load_checkpoint(actor_module, None, None)"))
def _checkpoint_layout_legacy(facts: PlanInputs) -> Broken:
    yield from _lacking(facts, "legacy checkpoint (iter_*/mp_rank_*)", "latest_checkpointed_iteration.txt")


def _lacking(facts: PlanInputs, layout: str, *names: str) -> Broken:
    """Yield an error on a checkpoint on this machine without the files of a layout."""
    given = facts.recipe.model.checkpoint
    place = facts.loaded.locate(given) if facts.megatron and given else None
    missing = [name for name in names if place and place.is_dir() and not (place / name).is_file()]
    if missing:
        figures = f"{given} has no {', '.join(missing)}, which Megatron's {layout} has"
        yield broken(figures, f"convert the model to Megatron's {layout}", "model.checkpoint")
