"""What a rehearsal showed, and what it could not show."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.rehearsal.layout_report import LayoutReport
from npu_rl.rehearsal.level_imports import ImportReport
from npu_rl.rehearsal.patch_hooks import PatchUse

# True of every rehearsal on a CPU, whatever the recipe.
ONLY_AN_NPU = (
    "HCCL: groups over machines, buffer sizes, timeouts",
    "the numerics and the speed of NPU kernels; graph mode; memory and fragmentation on a die",
    "offloading that really frees a die's memory; overlap of streams",
    "the recipe's own model, data, batch and number of ranks in one training",
)


@dataclass
class TrainPart:
    """The level *train*, or one case of *rollout*. curve: (step, mean reward). transfer: the largest mean difference
    of probabilities between rollout and actor in the first steps. failure: why it is not all well, or None. usage:
    folders with the counts of what ran."""

    curve: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    seconds_per_step: float | None = None
    transfer: float | None = None
    changed: list[str] = field(default_factory=list)
    run: str = ""
    failure: str | None = None
    usage: list[Path] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        said = {name: value for name, value in vars(self).items() if name != "usage"}
        return {**said, "ok": self.failure is None, "curve": [list(pair) for pair in self.curve]}


@dataclass
class RehearsalReport:
    """A rehearsal of one recipe. Levels that were not asked for are None. backend: what trained, for people.
    unproven: why the tree is not as locked, if a person allowed that."""

    recipe: str
    tree: str
    commit: str
    backend: str = "FSDP"
    imports: ImportReport | None = None
    layout: LayoutReport | None = None
    train: TrainPart | None = None
    rollout: dict[str, TrainPart] | None = None
    standins: dict[str, int] = field(default_factory=dict)
    patches: list[PatchUse] = field(default_factory=list)
    unproven: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every level that was asked for is well."""
        levels = [self.imports is None or self.imports.ok, self.layout is None or self.layout.ok]
        return all(levels) and all(part.failure is None for part in self.trained())

    def trained(self) -> list[TrainPart]:
        """All parts that ran the trainer."""
        return [*([self.train] if self.train else []), *(self.rollout or {}).values()]

    def to_json(self) -> dict[str, Any]:
        """The documented form."""
        return {
            "ok": self.ok,
            "proven": self.unproven is None,
            **({} if self.unproven is None else {"unproven": self.unproven}),
            "recipe": self.recipe,
            "tree": self.tree,
            "commit": self.commit,
            "imports": self.imports.to_json() if self.imports else None,
            "layout": self.layout.to_json() if self.layout else None,
            "train": self.train.to_json() if self.train else None,
            "rollout": {name: part.to_json() for name, part in self.rollout.items()}
            if self.rollout
            else None,
            "real": self.real(),
            "stood_in_for": self.standins,
            "patches": [patch.to_json() for patch in self.patches],
            "only_an_npu_can_show": self.only_an_npu(),
        }

    def real(self) -> list[str]:
        """What ran as it is in the tree."""
        if not self.trained():
            return []
        engine = "vLLM's V1 engine: model, scheduler, KV cache, sampler, expert parallel over the ranks"
        return [
            *([engine] if self.rollout else []),
            "the trainer's entry point, its Ray actors, data, rollout, reward, advantages, losses, optimizer",
            "the weights' way to the rollout, through the trainer's own converter",
            *(["names the rollout doesn't know and weights that stay unset end it"] if self.train else []),
            f"{self.backend}, autograd and every collective's result (over gloo)",
        ]

    def only_an_npu(self) -> list[str]:
        """What no CPU can show: in general, and of each patch by its header."""
        of_patches = [
            f"{patch.name}: {patch.needs_npu}"
            for patch in self.patches
            if patch.needs_npu and not patch.needs_npu.lower().startswith("nothing")
        ]
        return [*ONLY_AN_NPU, *of_patches]

    def text(self) -> str:
        """For people."""
        lines = [f"Rehearsal of {self.recipe}, tree {self.tree}"]
        unproven = [] if self.unproven is None else [f"UNPROVEN: {self.unproven}"]
        lines += unproven
        for title, part in (("imports", self.imports), ("layout", self.layout)):
            if part is not None:
                lines += [
                    f"{title}: {'ok' if part.ok else 'FAILED'}",
                    *(f"  {line}" for line in part.lines()),
                ]
        if self.train is not None:
            lines += self._train_lines("train", self.train)
        for name, trained in (self.rollout or {}).items():
            lines += self._train_lines(f"rollout, {name} parallel", trained)
        lines += _section("patches", [patch.line() for patch in self.patches])
        lines += _section("real", self.real())
        lines += _section(
            "stood in for", [f"{name} ({count} times)" for name, count in self.standins.items()]
        )
        lines += _section("only an NPU can show", self.only_an_npu())
        lines += unproven
        lines.append(f"{self.recipe}: {'the rehearsal is all well' if self.ok else 'the rehearsal FAILED'}")
        return "\n".join(lines)

    def _train_lines(self, title: str, part: TrainPart) -> list[str]:
        lines = [f"{title}: {'ok' if part.failure is None else 'FAILED'}"]
        if part.failure:
            lines += [f"  {line}" for line in part.failure.splitlines()]
        if part.curve:
            (first, low), (last, high) = part.curve[0], part.curve[-1]
            lines.append(f"  mean reward {low:.3f} at step {first}, {high:.3f} at step {last}")
        if part.seconds_per_step is not None:
            lines.append(f"  {part.seconds_per_step:.2f} s a step, {part.seconds:.0f} s in all")
        if part.transfer is not None:
            lines.append(
                f"  rollout and actor differ by {part.transfer:.2g} in a token's probability, on average"
            )
        lines += [f"  scaled down: {line}" for line in part.changed]
        if part.run:
            lines.append(f"  record: {part.run}")
        return lines


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"{title}:", *(f"  {line}" for line in lines)] if lines else []
