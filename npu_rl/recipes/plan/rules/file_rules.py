"""Rules on the model's files, the checkpoint and the ports of a run's machines."""

from __future__ import annotations

from npu_rl.recipes.plan.rules.pins import CONVERTER, SERVERS, UNPATCHED, VERL, WORKERS, cann
from npu_rl.recipes.plan.rules.rule import Outcome, Outcomes, rule
from npu_rl.recipes.sizing.plan_inputs import PlanInputs
from npu_rl.recipes.trainer_code.bridged_actor import ONLY_BRIDGES
from npu_rl.recipes.trainer_code.citations import Place

_LAST_PORT = 65535
_LAST_HCCL_PORT = 65520  # the manual's limit, as in variables.yaml: 16 ports from here on
_CANN_PORTS = cann("workers/vllm_rollout/vllm_parallel_state.py", 'os.environ["VLLM_DP_MASTER_PORT"] = str(')
_CHECKPOINT, _MASTER = ("model", "checkpoint"), ("env", "MASTER_PORT")


@rule(
    "clean-model-config",
    Place(CONVERTER, "please modify the config.json to remove quantization_config", VERL),
    only=("megatron", "shape"),
)
def _clean_model_config(facts: PlanInputs) -> Outcomes:
    if facts.shape is None or facts.upstream.has(ONLY_BRIDGES):
        return
    unclean = facts.shape.unsupported
    found = ((key, str(value)) for key, value in unclean)
    yield Outcome(
        not unclean,
        ", ".join(f"{key} is {text if len(text) <= 40 else f'{text[:40]}...'}" for key, text in found)
        or "no quantization_config, no num_nextn_predict_layers",
        "remove quantization_config and set num_nextn_predict_layers to 0 in the bf16 model's config.json",
        path=("model", "path"),
    )


@rule("checkpoint-on-every-node", certain=False, only=("megatron",))
def _checkpoint_on_every_node(facts: PlanInputs) -> Outcomes:
    nodes, given = facts.recipe.cluster.nodes, facts.recipe.model.checkpoint
    if (
        given
    ):  # ./, ../ and ~ are made absolute before the run; other relative names depend on a worker's folder
        yield Outcome(
            nodes == 1 or given.startswith(("/", "./", "../", "~")) or "://" in given,
            f"{given}, the same on {nodes} {'node' if nodes == 1 else 'nodes'}; other nodes are not checked",
            "name it by an absolute path that is the same, on shared storage, on every node",
            path=_CHECKPOINT,
        )


@rule(
    "checkpoint-layout",
    (
        Place(WORKERS, "load_mcore_dist_weights(\n", UNPATCHED),
        Place(ONLY_BRIDGES.file, "load_mcore_dist_weights(\n", SERVERS),
    ),
    certain=False,
    only=("megatron",),
)
def _checkpoint_layout(facts: PlanInputs) -> Outcomes:
    """Check a checkpoint on this machine; one that isn't here is skipped."""
    given = facts.recipe.model.checkpoint
    place = facts.loaded.locate(given) if given else None
    if place is None or not place.is_dir():
        return
    missing = [name for name in (".metadata", "common.pt", "metadata.json") if not (place / name).is_file()]
    legacy = missing and (place / "latest_checkpointed_iteration.txt").is_file()
    yield Outcome(
        not missing,
        f"{given} has {'no ' + ', '.join(missing) if missing else '.metadata, common.pt and metadata.json'}"
        + ("; it is one of Megatron's legacy checkpoints (iter_*/mp_rank_*)" if legacy else ""),
        "convert the model to Megatron's dist checkpoint (torch_dist)",
        path=_CHECKPOINT,
    )


# What use_dist_checkpointing loads there is Megatron-LM's own format before dist checkpoints; without the file it
# "will not load any checkpoints and will start from random" (megatron/training/checkpointing.py:548@core_r0.8.0).
@rule(
    "checkpoint-layout-legacy",
    cann("workers/megatron_workers.py", "load_checkpoint(actor_module, None, None)"),
    only=("megatron",),
)
def _checkpoint_layout_legacy(facts: PlanInputs) -> Outcomes:
    given = facts.recipe.model.checkpoint
    place = facts.loaded.locate(given) if given else None
    if place is not None and place.is_dir():
        legacy = (place / "latest_checkpointed_iteration.txt").is_file()
        yield Outcome(
            legacy,
            f"{given} has {'a' if legacy else 'no'} latest_checkpointed_iteration.txt, without which Megatron keeps"
            " its random weights with a warning",
            "convert the model to Megatron's legacy checkpoint (iter_*/mp_rank_*) for this layout",
            path=_CHECKPOINT,
        )


def _port(facts: PlanInputs, name: str) -> int | None:
    given = facts.env.get(name, "")
    return int(given) if given.isdigit() else None


def _engine_groups(facts: PlanInputs) -> int:
    """Return the number of data-parallel groups of the rollout; each binds a port."""
    layout = facts.layout
    if layout is None or layout.rollout is None:
        return 0
    return max(1, facts.world // max(1, layout.rollout.data))


@rule("rollout-ports", _CANN_PORTS, certain=False)
def _rollout_ports(facts: PlanInputs) -> Outcomes:
    master, groups = _port(facts, "MASTER_PORT"), _engine_groups(facts)
    if master is not None:
        last = master + groups
        yield Outcome(
            master > 0 and last <= _LAST_PORT,
            f"MASTER_PORT {master} + {groups} data parallel groups = {last}, the last port is {_LAST_PORT}",
            f"set env.MASTER_PORT to {_LAST_PORT - groups} or less",
            path=_MASTER,
        )


@rule("hccl-ports", certain=False)
def _hccl_ports(facts: PlanInputs) -> Outcomes:
    hccl, dies = _port(facts, "HCCL_IF_BASE_PORT"), facts.recipe.cluster.dies
    if hccl is not None:
        last, most = hccl + dies - 1, min(_LAST_HCCL_PORT, _LAST_PORT - dies + 1)
        yield Outcome(
            0 < hccl <= most,
            f"HCCL_IF_BASE_PORT {hccl}: {dies} dies take {hccl} to {last}, the base may be {most} at most",
            f"set env.HCCL_IF_BASE_PORT to {most} or less",
            path=("env", "HCCL_IF_BASE_PORT"),
        )


@rule("ports-overlap", _CANN_PORTS, certain=False)
def _ports_overlap(facts: PlanInputs) -> Outcomes:
    master, hccl = (_port(facts, name) for name in ("MASTER_PORT", "HCCL_IF_BASE_PORT"))
    if master is not None and hccl is not None:
        last, dies = master + _engine_groups(facts), facts.recipe.cluster.dies
        yield Outcome(
            last < hccl or hccl + dies <= master,
            f"the engine's {master} to {last}, HCCL's {hccl} to {hccl + dies - 1}",
            "set env.MASTER_PORT so that they don't meet",
            path=_MASTER,
        )
