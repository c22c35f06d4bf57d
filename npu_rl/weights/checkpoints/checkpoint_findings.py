"""Properties of a checkpoint folder that need no torch: its config.json, its shards' headers, its files."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from npu_rl.common.errors import NpuRlError
from npu_rl.common.yaml_documents.finding import Finding, Severity, file_finding
from npu_rl.weights.checkpoints.hash_list import HashComparison
from npu_rl.weights.checkpoints.output_folder import NOTE, unfinished_command
from npu_rl.weights.tensors.npu_rl_tensors.cast_plan import FP8, SCALE_SUFFIX, is_beyond
from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import CONFIG, INDEX, HfCheckpoint, listed
from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError

ROUTER_BIAS = "e_score_correction_bias"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


class WantedCheckpoint(Protocol):
    """The model and format that a recipe expects. Its methods add differences to the folder's findings."""

    def compare_architecture(self, checked: CheckedFolder) -> None:
        """Compare config.json's sizes with the model's."""

    def compare_transformers(self, checked: CheckedFolder, version: str) -> None:
        """Compare the version of transformers that saved the model with the stack's version."""

    def compare_format(self, checked: CheckedFolder, ranks: Sequence[int]) -> None:
        """Compare the format of a Megatron checkpoint, and the ranks of a legacy one."""


@dataclass
class CheckedFolder:
    """A checkpoint folder and the findings about it.

    Attributes:
        checkpoint: None if the folder has no readable weights.
        tensors: Shape of each tensor by name, of the shards that can be read.
        dtypes: Number of tensors by dtype.
        bytes: Of all shards that can be read.
        mtp: Names of the tensors of multi-token prediction.
        bytes_in_bf16: What a cast to BF16 writes at most.
        format: hf, torch_dist or legacy.
        shards: The number of files with tensors.
        model: transformers' class; None if its tensors were not compared.
        transformers: Version of transformers; None if it was not asked.
        unchecked: Why the tensors were not compared with the model's; empty if they were.
        hashes: The comparison with the folder's list of hashes, if there was one.
    """

    folder: Path
    checkpoint: HfCheckpoint | None = field(default=None, repr=False)
    findings: list[Finding] = field(default_factory=list)
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False)
    dtypes: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    mtp: frozenset[str] = field(default=frozenset(), repr=False)
    bytes_in_bf16: int = 0
    format: str = "hf"
    shards: int = 0
    model: str | None = None
    transformers: str | None = None
    unchecked: str = ""
    hashes: HashComparison | None = None

    @property
    def ok(self) -> bool:
        """Return whether the check found no errors, and no file has another hash."""
        errors = any(found.severity is Severity.ERROR for found in self.findings)
        return not errors and (self.hashes is None or self.hashes.ok)

    @property
    def fp8(self) -> bool:
        """Return whether any tensor is in FP8."""
        return any(dtype.startswith("F8") for dtype in self.dtypes)

    def add(self, rule: str, severity: Severity, where: Path | str, message: str, fix: str = "") -> None:
        """Add a finding about a file of the folder."""
        self.findings.append(file_finding(rule, severity, where, message, fix))

    def error(self, rule: str, where: Path | str, message: str, fix: str = "") -> None:
        """Add a finding that is an error."""
        self.add(rule, Severity.ERROR, where, message, fix)

    def unreadable(self, error: TensorError | NpuRlError) -> None:
        """Add a finding that a file of the checkpoint can't be read."""
        why = (error.why or "").replace("\n", " ").rstrip(".")
        message, fix = ". ".join(filter(None, (error.what, why))), (error.hint or "").rstrip(".")
        self.error("weights-files", error.where or self.folder, message, fix)


def check_folder(folder: Path) -> CheckedFolder:
    """Check a checkpoint's folder by its config.json, index and the headers of all shards; no data is read."""
    checked = CheckedFolder(folder)
    command = unfinished_command(folder)
    if command is not None:
        message = f"`weights {command}` into it is unfinished"
        fix = f"run the same `npu-rl weights {command}` again"
        checked.error(f"weights-{command}-unfinished", folder / NOTE, message, fix)
        return checked  # what makes its files a checkpoint is written last
    try:
        checked.checkpoint = HfCheckpoint(folder)
        config = checked.checkpoint.config
    except TensorError as error:
        checked.unreadable(error)
        return checked
    _read_headers(checked, checked.checkpoint)
    _check_config(checked, config)
    _check_dtypes(checked, checked.checkpoint, config)
    _check_files(checked, checked.checkpoint)
    return checked


def _read_headers(checked: CheckedFolder, checkpoint: HfCheckpoint) -> None:
    checked.shards = len(checkpoint.shards)
    for shard in checkpoint.shards:
        try:
            header = checkpoint.header(shard)
        except TensorError as error:
            checked.unreadable(error)
            continue
        checked.bytes += header.size
        for entry in header.entries.values():
            checked.tensors[entry.name] = entry.shape
            checked.dtypes[entry.dtype] += 1
            if not entry.name.endswith(SCALE_SUFFIX):
                checked.bytes_in_bf16 += entry.size * (2 if entry.dtype == FP8 else 1)


def _check_config(checked: CheckedFolder, config: dict[str, object]) -> None:
    """Report config.json settings that verl's Megatron path refuses (verl/models/mcore/config_converter.py@55e3c5b)."""
    place = checked.folder / CONFIG
    if config.get("quantization_config"):
        message, fix = "quantization_config is set", "remove quantization_config from it"
        if checked.fp8:
            size = f"{checked.bytes_in_bf16 / 1e9:.1f} GB"
            message += f", and the weights are in FP8; in BF16 they take {size} of disk"
            fix = _cast_command(checked.folder)
        checked.error("weights-config-quantization", place, message, fix)
    mtp = config.get("num_nextn_predict_layers")
    if mtp:
        message = (
            f"num_nextn_predict_layers is {mtp}: the trainer would build layers of multi-token prediction"
        )
        checked.error("weights-config-mtp", place, message, "set num_nextn_predict_layers to 0 in it")


def _check_dtypes(checked: CheckedFolder, checkpoint: HfCheckpoint, config: dict[str, object]) -> None:
    expected = DTYPES.get(str(config.get("torch_dtype", config.get("dtype"))))
    fp8, other, rounded = [], [], []
    for name, shard in checkpoint.weight_map.items():
        if name not in checked.tensors:
            continue
        dtype = checkpoint.header(shard).entries[name].dtype
        if dtype.startswith("F8"):
            fp8.append(name)
        elif name.endswith(ROUTER_BIAS):
            if dtype != "F32":
                rounded.append(name)
        elif expected and dtype != expected and not name.endswith(SCALE_SUFFIX):
            other.append(f"{name} ({dtype})")
    where = checked.folder
    if fp8 and not config.get("quantization_config"):
        message = f"{len(fp8)} tensors are in FP8, which config.json does not record: {listed(sorted(fp8))}"
        checked.error("weights-fp8", where, message, _cast_command(where))
    if rounded:
        message = f"{len(rounded)} biases of routers are not in F32, so they were rounded: {listed(sorted(rounded))}"
        checked.add("weights-router-bias", Severity.ADVICE, where, message)
    if other:
        message = f"{len(other)} tensors are not in config.json's {expected}: {listed(sorted(other))}"
        checked.add("weights-dtype", Severity.ADVICE, where, message)


def _check_files(checked: CheckedFolder, checkpoint: HfCheckpoint) -> None:
    folder = checked.folder
    unlisted = sorted(p.name for p in folder.glob("*.safetensors") if p.name not in checkpoint.shards)
    if unlisted:
        message = f"{INDEX} does not list {listed(unlisted)}"
        checked.add("weights-unlisted", Severity.ADVICE, folder, message, "move them elsewhere")
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        message = f"it has no tokenizer: none of {', '.join(_TOKENIZERS)}"
        fix = "copy the tokenizer's files beside the weights"
        checked.add("weights-tokenizer", Severity.ADVICE, folder, message, fix)
    layers = checkpoint.config.get("num_hidden_layers")
    if type(layers) is int:
        checked.mtp = frozenset(name for name in checkpoint.weight_map if is_beyond(name, layers))
    if checked.mtp:
        message = f"{len(checked.mtp)} tensors of multi-token prediction, which the trainer leaves out"
        checked.add("weights-mtp-tensors", Severity.NOTE, folder, message)


def _cast_command(folder: Path) -> str:
    return f"npu-rl weights cast {shlex.quote(str(folder))} {shlex.quote(f'{folder}-BF16')}"
