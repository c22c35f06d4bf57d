"""Rehearsal level *layout*: the recipe's process groups at their real sizes, and a tiny model over a small layout.

Groups are formed as every rank of the world in turn, by the tree's own code on torch's fake process group. That does
not show what a layer refuses ("MLA is not supported with Tensor Parallelism yet", MindSpeed 7ff818c). So a tiny model
of Megatron's is built and trained for one step on real gloo ranks, with every dimension at most 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic

from npu_rl.recipes.sizing.divisibility import Check, check_sizes
from npu_rl.recipes.sizing.parallelism import Parallelism
from npu_rl.recipes.sizing.process_groups import rollout_groups, train_groups
from npu_rl.rehearsal.child_process import TrainingChild
from npu_rl.rehearsal.layout_report import LayoutReport, NotRehearsed
from npu_rl.rehearsal.layout_verdict import LayoutResult, judge_groups, judge_model
from npu_rl.rehearsal.model_size_keys import SIZE_KEYS
from npu_rl.stack.sources.progress import Notify

_LOAD_TIMEOUT = 300.0  # seconds to import the tree
_RANK_TIMEOUT = 2.0  # seconds to form the groups of one rank
_STEP_TIMEOUT = 120.0  # seconds for a step of the tiny model
_LAYERS_PER_STAGE, _EXPERTS_PER_RANK = 2, 2  # of the tiny model (tiny_megatron.py)


def rehearse_layout(
    layout: Parallelism,
    child: TrainingChild,
    notify: Notify,
    device: str = "npu",
    without_rollout: str | None = None,
) -> LayoutReport:
    """Rehearse a layout. Inconsistent sizes are reported without a rehearsal.

    Args:
        device: What the recipe runs on.
        notify: Called with notes on what is done.
        without_rollout: Why the rollout's groups can't be formed, or None.

    Raises:
        NpuRlError: If the interpreter as a whole fails.
    """
    begun = monotonic()
    found: list[LayoutResult] = list(check_sizes(layout))
    stood_in: list[str] = []
    if all(isinstance(item, Check) and item.ok for item in found):
        notify(f"forming the groups of {layout.world} ranks, as each rank in turn")
        found += _form_groups(layout, child, without_rollout)
        if layout.megatron:
            notify(f"training a tiny model over {tiny_sizes(layout)[0]} ranks")
            found += _train_tiny_model(layout, child, device, stood_in)
        found += _not_rehearsable(layout, device)
    else:
        found.append(NotRehearsed("groups and tiny model", "the sizes don't fit"))
    return LayoutReport(
        tuple(item for item in found if isinstance(item, Check)),
        tuple(item for item in found if isinstance(item, NotRehearsed)),
        tuple(stood_in),
        round(monotonic() - begun, 1),
    )


def _has_mindspeed(layout: Parallelism, child: TrainingChild) -> bool:
    return layout.megatron and (child.code / "mindspeed").is_dir()


def _form_groups(
    layout: Parallelism, child: TrainingChild, without_rollout: str | None
) -> list[LayoutResult]:
    """Form the process groups of training and rollout at the recipe's sizes."""
    left_out: list[LayoutResult] = []
    if layout.rollout is not None and without_rollout is not None:
        left_out.append(NotRehearsed("rollout groups", without_rollout))
        layout = replace(layout, rollout=None)
    train = "megatron" if layout.megatron else "fsdp"
    parts = {train: ("training", train_groups(layout))}
    if layout.rollout is not None:
        parts["vllm"] = ("rollout", rollout_groups(layout.rollout))
    job = {
        "parts": list(parts),
        "world": layout.world,
        "mindspeed": _has_mindspeed(layout, child),
        "train": layout.training_sizes(),
        "stage_layers": list(layout.stage_layers),
        "rollout": None if layout.rollout is None else vars(layout.rollout),
    }
    limit = _LOAD_TIMEOUT + _RANK_TIMEOUT * layout.world * len(parts)
    lines = child.run("groups", job, limit)
    judged = [
        found
        for part, (name, sizes) in parts.items()
        for found in judge_groups(name, [line for line in lines if line["part"] == part], sizes, layout.world)
    ]
    return [*judged, *left_out]


def _train_tiny_model(
    layout: Parallelism, child: TrainingChild, device: str, stood_in: list[str]
) -> list[LayoutResult]:
    """Train the tiny model. Appends the replaced names to `stood_in`."""
    left_out, mindspeed = list[LayoutResult](), _has_mindspeed(layout, child)
    if layout.train.context > 1:
        left_out.append(NotRehearsed("tiny model: context parallelism", "its sequences are not packed"))
    if not mindspeed and _mixes_up_ranks(layout):
        why = "Megatron-core's local expert layers mix up their ranks at this combination of sizes"
        left_out.append(NotRehearsed("tiny model: experts", why))
        layout = replace(layout, model=replace(layout.model, experts=0))
    world, sizes = tiny_sizes(layout)
    job = {
        "device": device,
        "world": world,
        "limit": _STEP_TIMEOUT,
        "mindspeed": mindspeed,
        "train": sizes,
        "model": {
            "experts": layout.model.experts,
            "kv_heads": layout.model.kv_heads,
            "latent_attention": layout.model.latent_attention,
        },
        "transformer": {k: v for k, v in layout.transformer.items() if k not in SIZE_KEYS},
    }
    lines = child.run("model", job, _LOAD_TIMEOUT + _STEP_TIMEOUT)
    stood_in += [what for line in lines for what in line.get("stood_in", ())]
    expected = {"layers": _LAYERS_PER_STAGE}
    if layout.model.experts:
        expected["experts"] = _EXPERTS_PER_RANK
    shape = ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    name = f"tiny model ({shape or f'ranks {world}'})"
    return [*judge_model(name, lines, world, expected), *left_out]


def _mixes_up_ranks(layout: Parallelism) -> bool:
    """Return whether RowParallelLinear of 0.12.1 sums an expert's output over tensor ranks that experts have not."""
    train = layout.train
    return layout.model.experts > 0 and train.tensor > 1 and train.expert == layout.expert_tensor == 1


def _not_rehearsable(layout: Parallelism, device: str) -> Iterator[NotRehearsed]:
    """Yield the properties that this level can't show for any tree."""
    if not layout.megatron:
        yield NotRehearsed(
            "tiny model", "FSDP's shards are torch's own; the level train wraps one by verl's worker"
        )
    if layout.rollout is not None:
        yield NotRehearsed("tiny model of the rollout", "vLLM's layers are tried by the level train")
    if device == "cuda":
        yield NotRehearsed("NCCL, memory and speed", "only a GPU can show them")
    else:
        yield NotRehearsed("HCCL, memory and speed", "only an NPU can show them")


_TINY_SIZE = 2  # greatest size of each dimension of the tiny layout


def tiny_sizes(layout: Parallelism) -> tuple[int, dict[str, int]]:
    """Return the tiny layout's number of ranks and training sizes, with dimensions of at most 2.

    It has no context parallelism, which verl has for packed sequences only (verl/models/mcore/util.py:179@796871d).
    """
    given = layout.train
    sizes = {name: min(getattr(given, name), _TINY_SIZE) for name in ("tensor", "pipeline", "expert")}
    sizes |= {"context": 1, "expert_tensor": min(layout.expert_tensor, _TINY_SIZE)}
    dense = sizes["tensor"] * sizes["pipeline"]
    return math.lcm(dense, sizes["expert_tensor"] * sizes["expert"] * sizes["pipeline"]), sizes
