"""Divisibility checks between a layout's sizes, the number of ranks and the model's sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from npu_rl.recipes.sizing.parallelism import Parallelism


@dataclass(frozen=True)
class Check:
    """One thing that was checked.

    Attributes:
        name: The id of the rule.
        ok: Whether it holds.
        figures: The numbers it compares.
        why: What is wrong; has no meaning if `ok`.
    """

    name: str
    ok: bool
    figures: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data; the reason only if the check failed."""
        plain = {"name": self.name, "ok": self.ok, "figures": dict(self.figures)}
        return plain if self.ok else {**plain, "why": self.why}


def check_sizes(layout: Parallelism) -> list[Check]:
    """Return one check for each rule on the sizes of a layout."""
    training = _check_megatron(layout) if layout.megatron else _check_fsdp(layout)
    return [*training, *_check_rollout(layout)]


def _check_megatron(layout: Parallelism) -> Iterator[Check]:
    train, model, world = layout.train, layout.model, layout.world
    yield _divides(
        "model-parallel-divides-world", world, train.tensor * train.pipeline * train.context, "ranks", "data"
    )
    yield _divides("tensor-parallel-divides-heads", model.heads, train.tensor, "heads", "per rank")
    if not model.latent_attention and model.shared_kv_heads:
        yield _check_key_heads("tensor-parallel-divides-kv-heads", model.kv_heads, train.tensor)
    elif not model.latent_attention:
        yield _divides("tensor-parallel-divides-kv-heads", model.kv_heads, train.tensor, "heads", "per rank")
    if model.stage_layers:
        stages, layers = len(model.stage_layers), sum(model.stage_layers)
        yield Check(
            "pipeline-layers",
            stages == train.pipeline and layers == model.layers,
            {"layers": model.layers, "stages": train.pipeline, "given": list(model.stage_layers)},
            f"{layers} layers on {stages} stages, where there are {model.layers} and {train.pipeline}",
        )
    else:
        yield _divides("pipeline-layers", model.layers, train.pipeline, "layers", "per stage")
    if model.experts:
        ranks = layout.expert_tensor * train.expert * train.pipeline
        yield _divides("expert-parallel-divides-world", world, ranks, "ranks", "expert data")
        yield _divides("expert-parallel-divides-experts", model.experts, train.expert, "experts", "per rank")
    elif train.expert > 1:
        why = f"expert parallel over {train.expert} ranks, but the model has no experts"
        yield Check("expert-parallel-divides-experts", False, {"experts": 0, "by": train.expert}, why)


def _check_fsdp(layout: Parallelism) -> Iterator[Check]:
    train = layout.train
    if 0 < train.shard < layout.world:
        yield _divides("fsdp-size-divides-world", layout.world, train.shard, "ranks", "replicas")
    yield _divides("sequence-parallel-divides-world", layout.world, train.sequence, "ranks", "data")
    yield _divides("sequence-parallel-divides-heads", layout.model.heads, train.sequence, "heads", "per rank")
    yield _check_key_heads("sequence-parallel-divides-kv-heads", layout.model.kv_heads, train.sequence)


def _check_key_heads(name: str, heads: int, ranks: int) -> Check:
    """Check the division of KV heads, which ranks may replicate."""
    figures = {"KV heads": heads, "by": ranks}
    if ranks < 1 or (heads % ranks and ranks % max(1, heads)):
        return Check(name, False, figures, f"{heads} KV heads and {ranks} ranks: neither divides the other")
    return Check(name, True, {**figures, "per rank": max(1, heads // ranks)})


def _check_rollout(layout: Parallelism) -> Iterator[Check]:
    if layout.rollout is None:
        return
    tensor, data = layout.rollout.tensor, layout.rollout.data
    yield _divides("rollout-parallel-divides-world", layout.world, tensor * data, "ranks", "engines")
    yield _divides("rollout-tensor-parallel-divides-heads", layout.model.heads, tensor, "heads", "per rank")
    if layout.model.experts and data > 1:
        yield _divides(
            "rollout-parallel-divides-experts", layout.model.experts, tensor * data, "experts", "per rank"
        )


def _divides(name: str, whole: int, by: int, what: str, share: str) -> Check:
    if by < 1:
        return Check(name, False, {what: whole, "by": by}, f"{by} is not a size")
    ok = whole % by == 0
    figures = {what: whole, "by": by, **({share: whole // by} if ok else {})}
    return Check(name, ok, figures, f"{whole} {what} can't be split evenly {by} ways")
