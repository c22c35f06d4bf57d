"""Rules on the model's files, the checkpoint and the ports of a run's machines."""

from __future__ import annotations

from collections.abc import Iterator

from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.sizing.plan_inputs import PlanInputs
from npu_rl.recipes.trainer_code.bridged_actor import ONLY_BRIDGES

_LAST_PORT = 65535
_LAST_HCCL_PORT = 65520  # the manual's limit, as in environment_table: 16 ports from here on


def path_and_port_rules(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rules on files and ports. Files that aren't on this machine are skipped."""
    if facts.recipe.megatron and facts.shape is not None and not facts.upstream.has(ONLY_BRIDGES):
        unclean = facts.shape.unsupported
        yield Rule(
            "clean-model-config",
            not unclean,
            ", ".join(f"{key} is {_shortened(value)}" for key, value in unclean)
            or "no quantization_config, no num_nextn_predict_layers",
            "remove quantization_config and set num_nextn_predict_layers to 0 in the bf16 model's config.json",
            path=("model", "path"),
        )
    if facts.recipe.megatron and facts.recipe.model.checkpoint:
        yield from _checkpoint_rules(facts, facts.recipe.model.checkpoint)
    yield from _port_rules(facts)


def _checkpoint_rules(facts: PlanInputs, given: str) -> Iterator[Rule]:
    nodes = facts.recipe.cluster.nodes
    # ./, ../ and ~ are made absolute before the run; other relative names depend on the folder of a worker.
    anywhere = given.startswith(("/", "./", "../", "~")) or "://" in given
    yield Rule(
        "checkpoint-on-every-node",
        nodes == 1 or anywhere,
        f"{given}, the same on {nodes} {'node' if nodes == 1 else 'nodes'}; other nodes are not checked",
        "name it by an absolute path that is the same, on shared storage, on every node",
        path=("model", "checkpoint"),
    )
    place = facts.loaded.locate(given)
    if not place.is_dir():
        return
    missing = [name for name in (".metadata", "common.pt", "metadata.json") if not (place / name).is_file()]
    legacy = (place / "latest_checkpointed_iteration.txt").is_file()
    yield Rule(
        "checkpoint-layout",
        not missing,
        f"{given} has {'no ' + ', '.join(missing) if missing else '.metadata, common.pt and metadata.json'}"
        + ("; it is one of Megatron's legacy checkpoints (iter_*/mp_rank_*)" if missing and legacy else ""),
        "convert the model to Megatron's dist checkpoint (torch_dist)",
        path=("model", "checkpoint"),
    )
    yield Rule(
        "checkpoint-layout-legacy",
        legacy,
        f"{given} has {'a' if legacy else 'no'} latest_checkpointed_iteration.txt, without which Megatron keeps"
        " its random weights with a warning",
        "convert the model to Megatron's legacy checkpoint (iter_*/mp_rank_*) for this layout",
        path=("model", "checkpoint"),
    )


def _port_rules(facts: PlanInputs) -> Iterator[Rule]:
    dies, groups = facts.recipe.cluster.dies, _engine_groups(facts)
    master, hccl = (_port(facts, name) for name in ("MASTER_PORT", "HCCL_IF_BASE_PORT"))
    if master is not None:
        last = master + groups
        yield Rule(
            "rollout-ports",
            master > 0 and last <= _LAST_PORT,
            f"MASTER_PORT {master} + {groups} data parallel groups = {last}, the last port is {_LAST_PORT}",
            f"set env.MASTER_PORT to {_LAST_PORT - groups} or less",
            path=("env", "MASTER_PORT"),
        )
    if hccl is not None:
        last, most = hccl + dies - 1, min(_LAST_HCCL_PORT, _LAST_PORT - dies + 1)
        yield Rule(
            "hccl-ports",
            0 < hccl <= most,
            f"HCCL_IF_BASE_PORT {hccl}: {dies} dies take {hccl} to {last}, the base may be {most} at most",
            f"set env.HCCL_IF_BASE_PORT to {most} or less",
            path=("env", "HCCL_IF_BASE_PORT"),
        )
    if master is not None and hccl is not None:
        apart = master + groups < hccl or hccl + dies <= master
        yield Rule(
            "ports-overlap",
            apart,
            f"the engine's {master} to {master + groups}, HCCL's {hccl} to {hccl + dies - 1}",
            "set env.MASTER_PORT so that they don't meet",
            path=("env", "MASTER_PORT"),
        )


def _engine_groups(facts: PlanInputs) -> int:
    """Return the number of data-parallel groups of the rollout; each binds a port."""
    layout = facts.layout
    if layout is None or layout.rollout is None:
        return 0
    return max(1, facts.world // max(1, layout.rollout.data))


def _port(facts: PlanInputs, name: str) -> int | None:
    given = facts.env.get(name, "")
    return int(given) if given.isdigit() else None


def _shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
