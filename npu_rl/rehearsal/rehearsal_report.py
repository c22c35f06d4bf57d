"""The report of a rehearsal: its results, and the properties that it can't show."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.common.printable import counted
from npu_rl.rehearsal.layout_report import LayoutReport, NotRehearsed
from npu_rl.rehearsal.level_imports import ImportReport
from npu_rl.rehearsal.patch_hooks import PatchUse
from npu_rl.rehearsal.run_differences.differences import Differences
from npu_rl.rehearsal.training_checks.interrupted_training import Resumed
from npu_rl.rehearsal.training_checks.recomputed_steps import RecomputedSteps
from npu_rl.rehearsal.training_checks.weight_syncs import WeightSyncs

# What no rehearsal on a CPU can show, whatever the recipe, by the recipe's device.
ONLY_A_DEVICE = {
    device: (
        f"{collectives}: groups over machines, buffer sizes, timeouts",
        f"the numerics and the speed of {kernels}; memory and fragmentation on a {place}",
        f"offloading that really frees a {place}'s memory; overlap of streams",
        "the recipe's own model, data, batch and number of ranks in one training",
    )
    for device, collectives, kernels, place in (
        ("npu", "HCCL", "NPU kernels; graph mode", "die"),
        ("cuda", "NCCL", "CUDA kernels, TransformerEngine's among them; CUDA graphs", "GPU"),
    )
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
        recomputed: What the recomputation of its steps found.
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
    recomputed: RecomputedSteps = field(default_factory=RecomputedSteps)
    resumed: Resumed | None = None

    @property
    def ok(self) -> bool:
        """Return whether it passed."""
        return self.failure is None

    def to_json(self) -> dict[str, Any]:
        """Return the part as JSON types."""
        fields = {name: value for name, value in asdict(self).items() if name not in ("usage", "engine")}
        return {"ok": self.ok, **fields}

    def lines(self) -> list[str]:
        """Return the part as lines of text."""
        lines = (self.failure or "").splitlines()
        if self.curve:
            (first, low), (last, high) = self.curve[0], self.curve[-1]
            lines.append(f"mean reward {low:.3f} at step {first}, {high:.3f} at step {last}")
        if self.seconds_per_step is not None:
            lines.append(f"{self.seconds_per_step:.2f} s a step, {self.seconds:.0f} s in all")
        if self.transfer is not None:
            lines.append(
                f"rollout and actor differ by {self.transfer:.2g} in a token's probability, on average"
            )
            if not self.engine:
                lines.append(
                    "of random weights: a wrong temperature, scale or routing on one side would hardly show"
                )
        elif self.curve:
            lines.append("the trainer does not compare the probabilities of rollout and actor")
        lines += self.weight_syncs.lines()
        lines += self.recomputed.lines()
        lines += [self.resumed.line()] if self.resumed else []
        lines += [f"scaled down: {line}" for line in self.changed]
        return [*lines, *([f"record: {self.run}"] if self.run else [])]


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
        return not self.changed_files and all(level.ok for level in self._levels().values())

    def _levels(self) -> dict[str, ImportReport | LayoutReport | TrainPart]:
        levels = {"imports": self.imports, "layout": self.layout, "train": self.train}
        cases = {f"rollout, {case} parallel": part for case, part in (self.rollout or {}).items()}
        return {name: level for name, level in {**levels, **cases}.items() if level is not None}

    def train_parts(self) -> list[TrainPart]:
        """Return all parts that ran the trainer."""
        return [level for level in self._levels().values() if isinstance(level, TrainPart)]

    def to_json(self) -> dict[str, Any]:
        """Return the report as documented in docs/json.md."""
        cases = {name: part.to_json() for name, part in (self.rollout or {}).items()}
        return {
            "ok": self.ok,
            "proven": self.unproven is None,
            **({} if self.unproven is None else {"unproven": self.unproven}),
            **{name: getattr(self, name) for name in ("recipe", "tree", "commit", "changed_files")},
            "differs": asdict(self.differences) if self.differences else None,
            "not_rehearsed": [asdict(part) for part in self.left_out],
            "imports": self.imports.to_json() if self.imports else None,
            "layout": self.layout.to_json() if self.layout else None,
            "train": self.train.to_json() if self.train else None,
            "rollout": cases or None,
            "real": self.real(),
            "stood_in_for": self.standins,
            "patches": [patch.to_json() for patch in self.patches],
            "only_an_npu_can_show": self.only_a_device(),
        }

    def real(self) -> list[str]:
        """Return the parts that ran unchanged from the tree."""
        parts = self.train_parts()
        engines = [
            "vLLM's V1 engine: model, scheduler, KV cache, sampler, expert parallel over the ranks"
        ] * any(part.engine for part in parts)
        standins = ["the check that the rollout knows every name it is sent, and gets every weight"] * any(
            not part.engine for part in parts
        )
        trained = [
            "the trainer's entry point, its Ray actors, data, rollout, reward, advantages, losses, optimizer",
            "the weights' way to the rollout, through the trainer's own converter",
            f"{self.backend}, autograd and every collective's result (over gloo)",
        ]
        return [*engines, *trained, *standins] if parts else []

    def only_a_device(self) -> list[str]:
        """Return the properties that need a device: general ones, and those in each patch's header."""
        needs = [patch for patch in self.patches if not patch.needs_npu.lower().startswith("nothing")]
        of_patches = [f"{patch.name}: {patch.needs_npu}" for patch in needs if patch.needs_npu]
        return [*ONLY_A_DEVICE[self._device], *of_patches]

    @property
    def _device(self) -> str:
        return "cuda" if self.device == "cuda" else "npu"

    def text(self) -> str:
        """Return the report as text."""
        unproven = [] if self.unproven is None else [f"UNPROVEN: {self.unproven}"]
        standins = [
            f"stand-in for: {name} ({counted(count, 'time')})" for name, count in self.standins.items()
        ]
        sections = {
            "not rehearsed": [f"{part.what}: {part.why}" for part in self.left_out],
            "differs from the run": [*(self.differences.lines() if self.differences else []), *standins],
        }
        for name, level in self._levels().items():
            sections[f"{name}: {'ok' if level.ok else 'FAILED'}"] = level.lines()
        if self.changed_files is not None:
            state = (
                "CHANGED by the trainings" if self.changed_files else "equals its lock after the trainings"
            )
            sections[f"workspace: {state}"] = self.changed_files
        sections["patches"] = [patch.line() for patch in self.patches]
        sections["real"] = self.real()
        sections[f"only {_A_DEVICE[self._device]} can show"] = self.only_a_device()
        lines = [f"Rehearsal of {self.recipe}, tree {self.tree}", *unproven]
        for title, content in sections.items():
            if content or ": " in title:
                lines += [title if ": " in title else f"{title}:", *(f"  {line}" for line in content)]
        well = "no fault in what was rehearsed" if self.left_out else "the rehearsal is all well"
        return "\n".join([*lines, *unproven, f"{self.recipe}: {well if self.ok else 'the rehearsal FAILED'}"])
