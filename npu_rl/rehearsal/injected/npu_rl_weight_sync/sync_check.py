"""Check of every weight sync of a run on a CPU, in each worker.

verl's sharding managers give the rollout's model an iterable of names and tensors, in `load_weights`, each time they
are entered (verl/workers/sharding_manager/megatron_vllm.py:160 at 55e3c5b; verl_patches/workers/sharding_manager/
megatron_vllm.py at bcd3be7 of cann-recipes-train). The check reads the trainer's parameters at its start, for they
may be offloaded before and after, and the rollout's when the manager has been entered, since waking up an engine may
lose what was loaded. At the second sync the manager is entered once more beforehand, with parameters that are all
changed by a quarter and then restored: rounding to bfloat16 hides the small changes of an update, and a rollout that
keeps the values of an earlier sync would not be noticed. Whether updates change the weights is noted from the third
sync on, for matrices: a norm's values are near 1, and in bfloat16 a few small steps leave them as they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from npu_rl_standins.fault import EXPERT_NUMBER
from npu_rl_standins.used import count
from npu_rl_tensors.formats.boxes import slices
from npu_rl_tensors.layouts.model_sizes import ModelDims, model_sizes
from npu_rl_tensors.layouts.name_tables import hf_shapes

from . import megatron_tensors, rollout_tensors
from .held import Held, Whole, gather
from .tensor_difference import Tensors, difference, equal, loaded, norms

NUMBER_OF_CHANGED_SYNC = 2
_LEAST_CHANGE = 16  # steps of bfloat16, in which the rollout holds its weights
_SYNC_OF_ALL_EXPERTS = 8
"""Sync until which an expert may have had no token to learn from: its matrices count as trained with another's."""
_LISTED = 8  # tensors that an error names


class WeightSyncError(RuntimeError):
    """The rollout's weights differ from the trainer's, or the trainer's from the checkpoint's."""


@dataclass(frozen=True)
class Sides:
    """The trainer's and the rollout's side of a weight sync on this rank.

    Attributes:
        dims: Sizes of the model.
        trained: Returns the parts that this rank trains.
        parameters: Returns the tensors that an update changes.
        rollout: The rollout's model, with `load_weights`.
        checkpoint: Folder of the model in the format of Hugging Face.
        tensor_rank: This rank among its engine's tensor parallel ranks.
    """

    dims: ModelDims
    trained: Callable[[set[str]], Iterable[Held]]
    parameters: Callable[[], Iterable[torch.Tensor]]
    rollout: Any
    checkpoint: Path
    tensor_rank: int = 0


@dataclass
class Check:
    """The syncs of one sharding manager.

    Attributes:
        number: Number of the sync, from 1.
        trained: The trainer's tensors at this sync.
        before: Those of the sync before.
        first: Those of the first sync.
        sent: What the trainer sent at this sync, on this rank.
    """

    sides: Sides
    number: int = 0
    trained: Whole = field(default_factory=lambda: Whole({}, ()))
    before: Tensors = field(default_factory=dict)
    first: Tensors = field(default_factory=dict)
    sent: dict[str, torch.Tensor] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def enter(self, manager: Any, enter: Callable[[Any], Any]) -> Any:
        """Enter the manager and compare. At the second sync, also compare with changed parameters before."""
        self.number += 1
        if self.number == NUMBER_OF_CHANGED_SYNC:
            self._enter_once(manager, enter, changed=True)
            manager.__exit__(None, None, None)
        return self._enter_once(manager, enter, changed=False)

    def _enter_once(self, manager: Any, enter: Callable[[Any], Any], *, changed: bool) -> Any:
        upstream = self.sides.rollout.load_weights
        refused: list[Exception] = []
        calls = 0
        self.sent.clear()  # what a sync before has sent says nothing about this one

        def load_weights(weights: Iterable[tuple[str, Any]], *others: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            originals = (
                [(value, value.detach().clone()) for value in self.sides.parameters()] if changed else []
            )
            for value, _ in originals:
                value.data.copy_(other_values(value.data))
            self.read_trainer()
            try:
                return upstream(self._recorded(weights), *others, **named)
            except Exception as error:
                refused.append(error)
                raise
            finally:
                for value, original in originals:
                    value.data.copy_(original)

        self.sides.rollout.load_weights = load_weights
        try:
            result = enter(manager)
        except Exception as error:
            if error in refused:
                self.require_loaded(error)
            raise
        finally:
            self.sides.rollout.load_weights = upstream
        if not calls:  # then nothing was read of the trainer, and the comparison would be one of nothing
            self._require(
                ["load_weights of the rollout's model was not called"], "npu-rl can't compare any tensor"
            )
        if changed:
            self.require_change()
        self.compare()
        return result

    def require_loaded(self, error: Exception) -> None:
        """Raise WeightSyncError for what a loader that refused its input with `error` did not load."""
        self._require(self._differences(set()), f"{error}; the rollout does not hold the trainer's tensors")

    def read_trainer(self) -> None:
        """Read the trainer's tensors, and compare the first sync's with the checkpoint. This is a collective call."""
        self.before = self.trained.tensors
        self.trained = gather(self.sides.trained(self.unknown), hf_shapes(self.sides.dims))
        self._require(list(self.trained.faults), "the trainer's ranks disagree")
        if not self.before:
            self.first = self.trained.tensors
            self._compare_with_checkpoint()

    def _recorded(self, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        self.sent.clear()
        for name, value in weights:
            self.sent[name] = value.detach().cpu().clone()
            yield name, value

    def _compare_with_checkpoint(self) -> None:
        """Compare the trainer's tensors with the checkpoint's.

        Where it is not known that the trainer loaded them, they are not compared if most differ: it was a resume, or
        the trainer began with random weights.
        """
        from safetensors.torch import load_file

        saved: dict[str, torch.Tensor] = {}
        for file in sorted(self.sides.checkpoint.glob("*.safetensors")):
            saved.update(load_file(file))
        both = {name: value for name, value in self.trained.tensors.items() if name in saved}
        wrong = [name for name, value in both.items() if not loaded(name, value, saved[name])]
        matrices = [name for name, value in both.items() if value.dim() > 1]
        if 2 * len(set(matrices) & set(wrong)) > len(matrices) and not _begins_with_checkpoint():
            return
        lines = []
        for name in wrong:
            value = both[name]
            what = difference(name, _whole(value), value, {key: saved[key] for key in both}, {})
            want, got = norms(saved[name], value)
            lines.append(f"{name}: {what}; norm {want:.4g} in the checkpoint, {got:.4g} in the trainer")
        self._require(lines, "the trainer did not load the checkpoint's tensors")

    def require_change(self) -> None:
        """Check that every tensor changed enough to be visible in the rollout's dtype."""
        for name, value in self.trained.tensors.items():
            old = self.before[name].double()
            step = 2.0 ** (old.abs().clamp(min=2.0**-20).log2().floor() - 7)
            if not bool(((value.double() - old).abs() / step).max() > _LEAST_CHANGE):
                raise WeightSyncError(f"npu-rl could not change {name} enough to see whether it arrives")

    def compare(self) -> None:
        """Compare the rollout's tensors with the trainer's, and record it. Raises WeightSyncError."""
        compared, wanted = set[str](), self.trained.tensors
        lines = self._differences(compared)
        for name in sorted(wanted.keys() - _on_any_rank(compared)):
            norm, _ = norms(wanted[name], wanted[name])
            lines.append(f"{name}: lost: the rollout of no rank has it; norm {norm:.4g} in the trainer")
        self._require(lines, "the rollout does not hold the trainer's tensors")
        count("weight_sync.compared")
        self._record(sorted(compared), [])

    def _differences(self, compared: set[str]) -> list[str]:
        """Return what differs in this rank's rollout, as text, and add the names of compared tensors."""
        lines, wanted = [], self.trained.tensors
        for part in rollout_tensors.tensors_of(
            self.sides.rollout, hf_shapes(self.sides.dims), self.sides.tensor_rank
        ):
            got = part.values.detach().cpu()
            if part.name not in wanted or part.name in compared:
                continue
            want = wanted[part.name][slices(part.box)]
            compared.add(part.name)
            if not equal(part.name, got, want):
                what = difference(part.name, part.box, got, wanted, self.before)
                norm, other = norms(want, got)
                lines.append(
                    f"{part.name}: {what}, {self._phase(part, got, want)}; "
                    f"norm {norm:.4g} in the trainer, {other:.4g} in the rollout"
                )
        return lines

    def _untrained(self) -> list[str]:
        """Return the matrices that still have the first sync's values; the first two syncs are not judged."""
        if self.number <= NUMBER_OF_CHANGED_SYNC:
            return []
        tensors = self.trained.tensors
        matrices = {name for name, value in self.first.items() if value.dim() > 1}
        same = {name for name in matrices if torch.equal(self.first[name], tensors[name])}
        if self.number < _SYNC_OF_ALL_EXPERTS:
            trained = {_of_any_expert(name) for name in matrices - same}
            same = {name for name in same if _of_any_expert(name) not in trained}
        return sorted(same)

    def _phase(self, part: Held, got: torch.Tensor, want: torch.Tensor) -> str:
        sent = self.sent.get(part.name)
        if sent is None or not sent.numel():
            return "not sent to this rank"
        if any(stop > size for (_, stop), size in zip(part.box, sent.shape, strict=True)):
            return "sent in another shape"
        sent = sent[slices(part.box)]
        if equal(part.name, sent.to(got.dtype), want):
            return "sent as it is in the trainer"
        return "as the trainer sent it" if torch.equal(sent.to(got.dtype), got) else "and sent otherwise, too"

    def _require(self, faults: list[str], what: str) -> None:
        """Raise WeightSyncError if there are faults, which are recorded."""
        if not faults:
            return
        self._record([], faults)
        more = [f"and {len(faults) - _LISTED} more"] if len(faults) > _LISTED else []
        title = f"weight sync {self.number}, rank {_rank()}: {what}"
        raise WeightSyncError("\n  ".join([title, *faults[:_LISTED], *more]))

    def _record(self, compared: list[str], faults: list[str]) -> None:
        """Add a line to this process's usage file, which npu_rl/rehearsal/training_checks reads."""
        folder = os.environ.get("NPU_RL_USAGE")
        if not folder:
            return
        line = {
            "sync": self.number,
            "rank": _rank(),
            "compared": compared,
            "unknown": sorted(self.unknown),
            "untrained": self._untrained(),
            "faults": faults,
        }
        with (Path(folder) / f"weight-sync-{os.uname().nodename}-{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def _of_any_expert(name: str) -> str:
    return EXPERT_NUMBER.sub("*", name)


def _begins_with_checkpoint() -> bool:
    """Return whether the trainer of this attempt is known to begin with the model's checkpoint."""
    return bool(os.environ.get("NPU_RL_LOADS"))


def _rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def _on_any_rank(names: set[str]) -> set[str]:
    """Return the union of all ranks' names. This is a collective call."""
    if not torch.distributed.is_initialized():
        return names
    ranks: list[set[str]] = [set() for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather_object(ranks, names)
    return set().union(*ranks)


def _whole(value: torch.Tensor) -> tuple[tuple[int, int], ...]:
    return tuple((0, size) for size in value.shape)


def other_values(value: torch.Tensor) -> torch.Tensor:
    """Return the values increased by a quarter, with zeros replaced by different values."""
    filled = 1 + torch.arange(value.numel(), device=value.device).reshape(value.shape) % 7
    return torch.where(value == 0, filled.to(value.dtype), value * 1.25)


def watch(manager_class: Any, sides: Callable[[Any], Sides]) -> None:
    """Check each entry of a sharding manager.

    Args:
        sides: Returns both sides of a manager.
    """
    upstream = manager_class.__enter__

    def __enter__(manager: Any) -> Any:
        check = vars(manager).get("_npu_rl_check")
        if check is None:
            check = manager._npu_rl_check = Check(sides(manager))
        return check.enter(manager, upstream)

    manager_class.__enter__ = __enter__


def megatron_and_vllm(manager: Any) -> Sides:
    """Return the sides of a sharding manager of verl or verl_patches."""
    from vllm.distributed import parallel_state

    rollout = getattr(manager, "rollout_model", None)
    rollout = manager.model_runner.model if rollout is None else rollout
    return megatron_sides(
        manager.actor_module,
        manager.model_config,
        rollout,
        parallel_state.get_tensor_model_parallel_rank(),
    )


def megatron_sides(chunks: Any, config: Any, rollout: Any, tensor_rank: int = 0) -> Sides:
    """Return the sides of a sync from Megatron.

    Args:
        chunks: The trained model, one Module per virtual pipeline stage.
        config: Its configuration, of transformers.
        rollout: The rollout's model.
        tensor_rank: As of Sides.
    """
    dims = model_sizes(config.to_dict(), config.name_or_path)
    return Sides(
        dims,
        lambda unknown: megatron_tensors.tensors_of(chunks, dims, unknown),
        lambda: [value for _, value in megatron_tensors.parameters(chunks)],
        rollout,
        Path(config.name_or_path),
        tensor_rank,
    )


def fsdp_sides(module: Any, config: Any, rollout: Any) -> Sides:
    """Return the sides of a sync from FSDP, whose tensors already have Hugging Face names.

    Args:
        module: The trained model.
        config: Its configuration, of transformers.
        rollout: The rollout's model.
    """
    from npu_rl_standins.rollout import full_state

    def trained(_unknown: set[str]) -> Iterator[Held]:
        for name, value in full_state(module).items():
            yield Held(name, _whole(value), value)

    def parameters() -> list[torch.Tensor]:
        return [value for value in [*module.parameters(), *module.buffers()] if value.is_floating_point()]

    path = config.name_or_path
    return Sides(model_sizes(config.to_dict(), path), trained, parameters, rollout, Path(path))
