"""The layout drawn as plain text within 80 columns: ranks by pipeline stage, process groups, rollout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npu_rl.recipes.memory.memory_by_phase import Memory
from npu_rl.recipes.sizing.parallelism import Parallelism
from npu_rl.recipes.sizing.plan_inputs import PlanInputs
from npu_rl.recipes.sizing.process_groups import Ranks, rollout_members, train_groups, train_members
from npu_rl.recipes.sizing.weight_sizes import stage_ranges

_GROUPS_SHOWN = 3  # groups of one kind that are written out
_NAMES = {
    **{"tensor": "TP", "context": "CP", "data": "DP", "pipeline": "PP"},
    **{"expert_tensor": "ETP", "expert": "EP", "expert_data": "EDP"},
}
_WIDTH = 78  # with the two columns it is indented by


def draw_layout(facts: PlanInputs, memory: Memory | None) -> list[str]:
    """Return the lines of the drawing; none if the sizes are inconsistent, which the rules report."""
    layout = facts.layout
    if layout is None:
        return []
    lines = list(_fsdp_lines(layout)) if not layout.megatron else list(_megatron_lines(facts, layout, memory))
    if layout.rollout is not None:
        lines += ["", *_rollout_lines(facts, layout)]
    return lines


def _fsdp_lines(layout: Parallelism) -> Iterator[str]:
    groups = ", ".join(f"{name} {size}" for name, size in train_groups(layout).items())
    yield f"training: {layout.world} die{'s' * (layout.world != 1)}, {layout.strategy}; ranks per group: {groups}"


def _megatron_lines(facts: PlanInputs, layout: Parallelism, memory: Memory | None) -> Iterator[str]:
    train, sizes = layout.train, train_groups(layout)
    dense = f"TP{train.tensor} x CP{train.context} x DP{sizes['data']} x PP{train.pipeline}"
    experts = f"ETP{layout.expert_tensor} x EP{train.expert} x EDP{sizes['expert_data']}"
    yield f"training: {layout.world} dies = {dense}; experts {experts}"
    ranges = stage_ranges(layout.stage_layers)
    yield "stage  layers        ranks       nodes    experts a die  parameters a die"
    each = layout.world // train.pipeline
    for number, layers in enumerate(ranges):
        yield _stage_line(facts, number, layers, each, memory)
    yield "groups (ranks):"
    for kind, groups in train_members(layout).items():
        yield _group_line(_NAMES[kind], groups)


def _stage_line(facts: PlanInputs, number: int, layers: range, each: int, memory: Memory | None) -> str:
    assert facts.layout is not None and facts.shape is not None
    begin, dies = number * each, facts.recipe.cluster.dies
    last = facts.layout.train.pipeline - 1
    ends = [name for name, at in (("embedding", 0), ("head", last)) if at == number]
    counts = f"{layers.start}-{layers.stop - 1} ({len(layers)})" if layers else "none"
    experts = facts.shape.experts // facts.layout.train.expert if facts.shape.experts else 0
    parameters = f"{sum(memory.stages[number].counts.values()) / 1e9:.3f} B" if memory else "?"
    nodes = _range_text(begin // dies, (begin + each - 1) // dies)
    return (
        f"{number:>5}  {counts:<12}  {_range_text(begin, begin + each - 1):<10}  {nodes:<7}  "
        f"{f'{experts} of {facts.shape.experts}':<13}  {parameters:<9} {' and '.join(ends)}"
    ).rstrip()


def _rollout_lines(facts: PlanInputs, layout: Parallelism) -> Iterator[str]:
    rollout = layout.rollout
    assert rollout is not None
    together = rollout.tensor * rollout.data
    experts = facts.shape.experts if facts.shape and facts.expert_parallel else 0
    copies = layout.world // together
    divided = (
        f" -> EP{together}, {experts // together or 'under 1'} of {experts} experts a die" if experts else ""
    )
    times = f" x {copies} copies" if copies != 1 else ""
    yield f"rollout: {layout.world} dies = TP{rollout.tensor} x DP{rollout.data}{times}{divided}"
    yield "groups (ranks):"
    for kind, groups in rollout_members(rollout, layout.world).items():
        if kind != "expert" or experts:
            yield _group_line(_NAMES[kind], groups)


def _group_line(name: str, groups: Sequence[Ranks]) -> str:
    if len(groups[0]) == 1:
        return f"  {name:<4} {len(groups):>4} x 1    each rank alone"
    shown = [_ranks_text(group) for group in groups]
    text = " | ".join(
        shown if len(shown) <= _GROUPS_SHOWN + 1 else [*shown[:_GROUPS_SHOWN], "...", shown[-1]]
    )
    start = f"  {name:<4} {len(groups):>4} x {len(groups[0]):<4} "
    if len(start) + len(text) > _WIDTH:
        text = " | ".join([shown[0], "...", shown[-1]])
    return start + text


def _ranks_text(group: Ranks) -> str:
    """Return the ranks of an evenly spaced group: "0-31", or "0 32 .. 224"."""
    if len(group) <= 2:
        return " ".join(map(str, group)) if group[-1] - group[0] > 1 else _range_text(group[0], group[-1])
    if group[1] - group[0] == 1:
        return _range_text(group[0], group[-1])
    return f"{group[0]} {group[1]} .. {group[-1]}"


def _range_text(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
