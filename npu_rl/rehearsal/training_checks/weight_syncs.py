"""Results of the weight sync checks (`npu_rl_weight_sync`) over all processes of a training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import parse_json, read_file
from npu_rl.common.documentation import page_url
from npu_rl.common.errors import NpuRlError

_FILES = "weight-sync-*.jsonl"
_SHOWN = 12  # faults that an error lists
_UPDATED = 3
"""Number of the first sync that follows an update at a rate above 0: a warm-up begins at 0."""


@dataclass
class WeightSyncs:
    """The weight syncs of a training.

    Attributes:
        syncs: Number of syncs that were compared whole.
        tensors: Tensors that the ranks' rollouts hold together, as compared at the last of them.
        unknown: Names of the trainer's tensors that npu-rl's tables don't have, so that they were not compared.
        updated: Whether a training was long enough to see what its updates change.
        untrained: Matrices that no update changed, in any such training.
        faults: What differed, as text.
    """

    syncs: int = 0
    tensors: int = 0
    unknown: list[str] = field(default_factory=list)
    updated: bool = False
    untrained: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the compared syncs as text."""
        if not self.syncs:
            return []
        lines = [
            f"{self.tensors} tensors of the rollout equal the trainer's after each of {self.syncs} weight syncs"
        ]
        if self.updated and not self.untrained:
            lines.append("updates changed every matrix")
        return lines + [f"not compared, having no entry in npu-rl's tables: {name}" for name in self.unknown]

    def require_equal(self, record: Path, steps: int) -> None:
        """Raise NpuRlError if tensors differed or were not compared in so many steps, or if no update changed them."""
        if self.faults:
            raise NpuRlError(
                "The weight sync is wrong",
                where=str(record),
                why=_shown(self.faults),
                hint="Follow the tensor from the trainer's converter to the rollout's load_weights. `npu-rl summary` "
                f"lists the patches that change them. The report: {page_url('rehearsal', 'weight-syncs')}",
            )
        if steps and not self.tensors:
            raise NpuRlError(
                "No weight sync was compared",
                where=str(record),
                why=f"The training made {steps} steps. npu-rl watches the sharding managers of verl and its rollout's "
                "load_weights; the weights went another way.",
            )
        if self.untrained:
            raise NpuRlError(
                "No update changed some of the trained weights",
                where=str(record),
                why=_shown([f"{name}: as at the first weight sync" for name in self.untrained]),
            )


def require_sync_per_step(usage: Path, steps: int) -> None:
    """Raise NpuRlError if a rank of an attempt has fewer compared weight syncs than steps.

    A rollout that goes on with the weights of an earlier step has no sync to compare.

    Args:
        usage: The attempt's folder of usage counts.
        steps: Number of steps that it trained.
    """
    syncs: dict[int, set[int]] = {}
    for line in _lines(usage):
        syncs.setdefault(line["rank"], set()).add(line["sync"])
    for rank, numbers in sorted(syncs.items()):
        if len(numbers) < steps:
            raise NpuRlError(
                "A weight sync is missing",
                where=str(usage.parent),
                why=f"Rank {rank} trained {steps} steps, and its rollout got the trainer's weights {len(numbers)} "
                "times: in the other steps it generated with those of an earlier one.",
            )


def read_weight_syncs(folders: Iterable[Path]) -> WeightSyncs:
    """Return the syncs recorded in the folders of usage counts."""
    found = WeightSyncs()
    names: dict[str, set[str]] = {}
    unknown: set[str] = set()
    untrained: dict[Path, set[str]] = {}  # by training, at its last sync
    for line in (line for folder in folders for line in _lines(folder)):
        found.faults += [f"sync {line['sync']}, rank {line['rank']}: {fault}" for fault in line["faults"]]
        unknown.update(line["unknown"])
        if line["sync"] >= _UPDATED and not line["faults"]:
            untrained[line["run"]] = set(line["untrained"])
        if not line["faults"]:
            names.setdefault(f"{line['run']} {line['sync']}", set()).update(line["compared"])
    found.syncs, found.unknown = len(names), sorted(unknown)
    found.updated = bool(untrained)
    found.untrained = sorted(set.intersection(*untrained.values())) if untrained else []
    found.tensors = len(list(names.values())[-1]) if names else 0
    return found


def _shown(faults: list[str]) -> str:
    more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
    return "\n".join([*faults[:_SHOWN], *more])


def _lines(folder: Path) -> Iterator[Mapping[str, Any]]:
    for file in sorted(folder.glob(_FILES)):
        for text in read_file(file).decode("utf-8", "replace").splitlines():
            try:
                yield {"run": folder, **parse_json(text)}
            except ValueError:
                continue  # the last line of a killed process may be incomplete
