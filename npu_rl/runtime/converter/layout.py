"""How a conversion is divided: pipeline stages times expert groups, one of each for every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .architecture import Architecture
from .errors import ConversionError


@dataclass(frozen=True)
class Layout:
    """`layers` has the number of layers of each pipeline stage; `expert` is the number of expert groups."""

    layers: tuple[int, ...]
    expert: int

    @property
    def pipeline(self) -> int:
        return len(self.layers)

    def stage(self, rank: int) -> int:
        """The pipeline stage of a rank. Ranks of one stage are neighbours, as in Megatron-core's default order."""
        return rank // self.expert

    def expert_group(self, rank: int) -> int:
        return rank % self.expert

    def layers_of(self, stage: int) -> range:
        """The layers of a stage, counted from 0 over the model."""
        first = sum(self.layers[:stage])
        return range(first, first + self.layers[stage])

    def experts_of(self, group: int, experts: int) -> range:
        """The experts of a group, counted from 0 over a layer that has `experts`."""
        size = experts // self.expert
        return range(group * size, (group + 1) * size)


def lay_out(
    model: Architecture, world: int, pipeline: int | None, expert: int, layers: Sequence[int] | None
) -> Layout:
    """The layout for `world` ranks, as asked for. Raises ConversionError where it can't be; nothing is adjusted.

    pipeline: stages; None: what `layers` or the world leaves. layers: of each stage; None: as even as can be.
    """
    if expert < 1 or (pipeline is not None and pipeline < 1):
        raise ConversionError(f"pipeline stages ({pipeline}) and expert groups ({expert}) are counted from 1")
    if pipeline is None:
        pipeline = len(layers) if layers else world // expert
    if pipeline * expert != world:
        raise ConversionError(
            f"{pipeline} pipeline stages x {expert} expert groups are {pipeline * expert} ranks, but {world} were "
            f"started: start {pipeline * expert}, or ask for sizes whose product is {world}"
        )
    if model.experts % expert:
        raise ConversionError(
            f"{model.experts} experts can't be divided evenly among {expert} groups: ask for a divisor"
        )
    if pipeline > model.layers:
        raise ConversionError(f"{pipeline} pipeline stages are more than the model's {model.layers} layers")
    return Layout(_divided(model.layers, pipeline, layers), expert)


def _divided(total: int, stages: int, asked: Sequence[int] | None) -> tuple[int, ...]:
    if asked is None:
        return tuple(total // stages + (stage < total % stages) for stage in range(stages))
    if len(asked) != stages or sum(asked) != total or min(asked) < 1:
        raise ConversionError(
            f"layers per stage {list(asked)}: there have to be {stages} numbers, one for each stage, from 1, with the "
            f"sum {total}; these are {len(asked)} with the sum {sum(asked)}"
        )
    return tuple(asked)
