"""The report of a rehearsal: its results, and the properties that it can't show."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.common.printable import counted
from npu_rl.rehearsal.layout_report import LayoutReport, NotRehearsed
from npu_rl.rehearsal.level_imports import ImportReport
from npu_rl.rehearsal.patch_hooks import PatchUse
from npu_rl.rehearsal.run_differences.differences import Differences
from npu_rl.rehearsal.training_checks.interrupted_training import Resumed
from npu_rl.rehearsal.training_checks.weight_syncs import WeightSyncs

# What no rehearsal on a CPU can show, whatever the recipe, by the recipe's device.
_RECIPES_OWN = "the recipe's own model, data, batch and number of ranks in one training"
ONLY_A_DEVICE = {
    "npu": (
        "HCCL: groups over machines, buffer sizes, timeouts",
        "the numerics and the speed of NPU kernels; graph mode; memory and fragmentation on a die",
        "offloading that really frees a die's memory; overlap of streams",
        _RECIPES_OWN,
    ),
    "cuda": (
        "NCCL: groups over machines, buffer sizes, timeouts",
        "the numerics and the speed of CUDA kernels, TransformerEngine's among them; CUDA graphs; memory and "
        "fragmentation on a GPU",
        "offloading that really frees a GPU's memory; overlap of streams",
        _RECIPES_OWN,
    ),
}
_A_DEVICE = {"npu": "an NPU", "cuda": "a GPU"}


@dataclass
class TrainPart:
    """The level *train*, or one case of the level *rollout*.

    Attributes:
        curve: Step and mean reward.
        seconds: Duration of the training.
        seconds_per_step: Median duration of a step.
        transfer: Greatest mean difference between the probabilities of rollout and actor in the first steps.
        changed: What was scaled down, as text.
        failure: Why it failed, or None.
        usage: Folders with counts of hooks and stand-ins.
        engine: Whether vLLM's engine generates, else the stand-in of the rollout.
        weight_syncs: What the comparison of both sides' tensors found.
        resumed: The comparison with the training before its stop, or None.
    """

    curve: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    seconds_per_step: float | None = None
    transfer: float | None = None
    changed: list[str] = field(default_factory=list)
    run: str = ""
    failure: str | None = None
    usage: list[Path] = field(default_factory=list)
    engine: bool = False
    weight_syncs: WeightSyncs = field(default_factory=WeightSyncs)
    resumed: Resumed | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the part as JSON types."""
        fields = {name: value for name, value in vars(self).items() if name not in ("usage", "engine")}
        return {
            **fields,
            "ok": self.failure is None,
            "curve": [list(pair) for pair in self.curve],
            "weight_syncs": self.weight_syncs.to_json(),
            "resumed": self.resumed.to_json() if self.resumed else None,
        }


@dataclass
class RehearsalReport:
    """The rehearsal of one recipe. Levels that were not selected are None.

    Attributes:
        backend: Name of the training backend, for people.
        device: The recipe's: what only a GPU can show is told of one for cuda, else of an NPU.
        imports: The level *imports*.
        layout: The level *layout*.
        train: The level *train*.
        rollout: The level *rollout*, by case.
        standins: Number of uses by stand-in.
        differences: What differs from the run, or None until it is known.
        changed_files: Files of the workspace that differ from the lock after the trainings; None if none was trained.
        left_out: Levels and parts that were asked for and can't be rehearsed.
        unproven: The user's reason for running a tree that is not as locked, or None.
    """

    recipe: str
    tree: str
    commit: str
    backend: str = "FSDP"
    device: str = "npu"
    imports: ImportReport | None = None
    layout: LayoutReport | None = None
    train: TrainPart | None = None
    rollout: dict[str, TrainPart] | None = None
    standins: dict[str, int] = field(default_factory=dict)
    patches: list[PatchUse] = field(default_factory=list)
    differences: Differences | None = None
    changed_files: list[str] | None = None
    left_out: tuple[NotRehearsed, ...] = ()
    unproven: str | None = None

    @property
    def ok(self) -> bool:
        """Return whether all selected levels passed."""
        levels = [self.imports is None or self.imports.ok, self.layout is None or self.layout.ok]
        trained = all(part.failure is None for part in self.train_parts())
        return all(levels) and trained and not self.changed_files

    def train_parts(self) -> list[TrainPart]:
        """Return all parts that ran the trainer."""
        return [*([self.train] if self.train else []), *(self.rollout or {}).values()]

    def to_json(self) -> dict[str, Any]:
        """Return the report as documented in docs/json.md."""
        return {
            "ok": self.ok,
            "proven": self.unproven is None,
            **({} if self.unproven is None else {"unproven": self.unproven}),
            "recipe": self.recipe,
            "tree": self.tree,
            "commit": self.commit,
            "differs": self.differences.to_json() if self.differences else None,
            "not_rehearsed": [vars(part) for part in self.left_out],
            "imports": self.imports.to_json() if self.imports else None,
            "layout": self.layout.to_json() if self.layout else None,
            "train": self.train.to_json() if self.train else None,
            "rollout": {name: part.to_json() for name, part in self.rollout.items()}
            if self.rollout
            else None,
            "changed_files": self.changed_files,
            "real": self.real(),
            "stood_in_for": self.standins,
            "patches": [patch.to_json() for patch in self.patches],
            "only_an_npu_can_show": self.only_a_device(),
        }

    def real(self) -> list[str]:
        """Return the parts that ran unchanged from the tree."""
        parts = self.train_parts()
        if not parts:
            return []
        engine = "vLLM's V1 engine: model, scheduler, KV cache, sampler, expert parallel over the ranks"
        standin = "the check that the rollout knows every name it is sent, and gets every weight"
        return [
            *([engine] if any(part.engine for part in parts) else []),
            "the trainer's entry point, its Ray actors, data, rollout, reward, advantages, losses, optimizer",
            "the weights' way to the rollout, through the trainer's own converter",
            *([] if all(part.engine for part in parts) else [standin]),
            f"{self.backend}, autograd and every collective's result (over gloo)",
        ]

    def only_a_device(self) -> list[str]:
        """Return the properties that need a device: general ones, and those in each patch's header."""
        of_patches = [
            f"{patch.name}: {patch.needs_npu}"
            for patch in self.patches
            if patch.needs_npu and not patch.needs_npu.lower().startswith("nothing")
        ]
        return [*ONLY_A_DEVICE[self._device], *of_patches]

    @property
    def _device(self) -> str:
        return "cuda" if self.device == "cuda" else "npu"

    def text(self) -> str:
        """Return the report as text."""
        lines = [f"Rehearsal of {self.recipe}, tree {self.tree}"]
        unproven = [] if self.unproven is None else [f"UNPROVEN: {self.unproven}"]
        lines += unproven
        lines += _section("not rehearsed", [f"{part.what}: {part.why}" for part in self.left_out])
        lines += _section("differs from the run", self._difference_lines())
        for title, level in (("imports", self.imports), ("layout", self.layout)):
            if level is not None:
                lines += [
                    f"{title}: {'ok' if level.ok else 'FAILED'}",
                    *(f"  {line}" for line in level.lines()),
                ]
        if self.train is not None:
            lines += self._train_lines("train", self.train)
        for name, part in (self.rollout or {}).items():
            lines += self._train_lines(f"rollout, {name} parallel", part)
        if self.changed_files is not None:
            state = (
                "CHANGED by the trainings" if self.changed_files else "equals its lock after the trainings"
            )
            lines += [f"workspace: {state}", *(f"  {file}" for file in self.changed_files)]
        lines += _section("patches", [patch.line() for patch in self.patches])
        lines += _section("real", self.real())
        lines += _section(f"only {_A_DEVICE[self._device]} can show", self.only_a_device())
        lines += unproven
        well = "no fault in what was rehearsed" if self.left_out else "the rehearsal is all well"
        lines.append(f"{self.recipe}: {well if self.ok else 'the rehearsal FAILED'}")
        return "\n".join(lines)

    def _difference_lines(self) -> list[str]:
        standins = [
            f"stand-in for: {name} ({counted(count, 'time')})" for name, count in self.standins.items()
        ]
        return [*(self.differences.lines() if self.differences else []), *standins]

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
            if not part.engine:
                lines.append(
                    "  of random weights: a wrong temperature, scale or routing on one side would hardly show"
                )
        elif part.curve:
            lines.append("  the trainer does not compare the probabilities of rollout and actor")
        lines += [f"  {line}" for line in part.weight_syncs.lines()]
        lines += [f"  {part.resumed.line()}"] if part.resumed else []
        lines += [f"  scaled down: {line}" for line in part.changed]
        if part.run:
            lines.append(f"  record: {part.run}")
        return lines


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"{title}:", *(f"  {line}" for line in lines)] if lines else []
