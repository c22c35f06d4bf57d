"""Mutated files of strangers: datasets, checkpoints, records, code trees. As test_mutations.py, without a workspace."""

from __future__ import annotations

import functools
import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.disk import disk_errors
from tests.hostile.mutate import Mutator
from tests.hostile.mutation_runs import run_cases
from tests.support import ROOT

pytestmark = pytest.mark.nightly

_PYLOCK = ROOT / "manifests/pylock.mindspeed-rl-grpo-py310-aarch64.toml"
TRAINER = """
import hydra

@hydra.main(config_path="config", config_name="main", version_base=None)
def main(config):
    print(config.data.get("seed", 1))

if __name__ == "__main__":
    main()
"""


def fresh(folder: Path) -> Path:
    """The empty folder of a case."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def encoded(m: Mutator, tree: Any) -> bytes:
    """JSON of the mutated tree, or mutated bytes of the JSON."""
    if m.random.random() < 0.7:
        return m.json(tree)
    return m.bytes(json.dumps(tree).encode())


# -- datasets ----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _parquet() -> bytes:
    import pyarrow
    from pyarrow import parquet

    row = {
        "question": "How many?",
        "answer": "They are #### 4",
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "How many?"}],
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 0, "split": "train"},
    }
    memory = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist([row] * 20), memory)
    return memory.getvalue()


def parquet_rows(folder: Path, m: Mutator) -> None:
    from npu_rl.data.datasets.input_rows import input_rows

    place = fresh(folder) / "rows.parquet"
    m.write(place, m.bytes(_parquet()))
    assert list(input_rows(place, lambda _: None, ["question", "answer"]))


def a_trainers_parquet(folder: Path, m: Mutator) -> None:
    from npu_rl.data.datasets.trainer_files import read_trainer_file
    from npu_rl.recipes.judgement.prepared_data import prepared_data_findings
    from npu_rl.recipes.recipe.load_recipe import load_recipe

    place = fresh(folder) / "train.parquet"
    place.write_bytes(m.bytes(_parquet()))
    report = {"data_source": "openai/gsm8k", "dataset": "gsm8k", "asks_for": "x", "lengths": {"max": 9}}
    m.write(folder / "prepared.json", encoded(m, {**report, "files": {"train.parquet": {"rows": 20}}}))
    m.file(place)
    parts = ("make=null", f"train=[{place}]", f"test=[{place}]")
    list(prepared_data_findings(load_recipe("quickstart", [f"data.{part}" for part in parts]), folder))
    read_trainer_file(place)


def json_rows(folder: Path, m: Mutator) -> None:
    from npu_rl.data.datasets.input_rows import input_rows

    row = {"question": "How many?", "answer": "They are #### 4", "n": [1, {"a": None}], "x": 0.5}
    lines = m.random.random() < 0.5
    place = fresh(folder) / ("rows.jsonl" if lines else "rows.json")
    text = b"\n".join(encoded(m, row) for _ in range(4)) if lines else encoded(m, [row] * 4)
    m.write(place, m.bytes(text) if m.random.random() < 0.3 else text)
    assert list(input_rows(place, lambda _: None, ["question", "answer"]))


def packed_files(folder: Path, m: Mutator) -> None:
    import struct

    from npu_rl.data.data_check.mindspeed_rl_files import sequences

    fresh(folder)
    index = folder / "data_packed_input_ids_document.idx"
    m.write(index, m.bytes(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 2, 3)))
    sequences(index)


def a_pylock(folder: Path, m: Mutator) -> None:
    from npu_rl.stack.pylocks.pylock_file import dump_pylock, elsewhere, read_pylock
    from npu_rl.stack.pylocks.requirement_lines import requirement_lines

    place = fresh(folder) / "pylock.m-py311-aarch64.toml"
    m.write(place, m.bytes(_PYLOCK.read_bytes()[:3000] + _PYLOCK.read_bytes()[-900:]))
    pylock = read_pylock(place)
    assert list(requirement_lines(pylock))
    assert elsewhere(pylock) or dump_pylock(pylock)


def a_download(folder: Path, m: Mutator) -> None:
    from npu_rl.data.downloads.verify_download import verify_download

    _hf_folder(fresh(folder), m)
    notes = folder / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    name = m.random.choice(("config.json", "model-1.safetensors"))
    (notes / f"{name}.metadata").write_bytes(m.bytes(b"a" * 40 + b"\n" + b"b" * 40 + b"\n1.0\n"))
    (folder / "rows.parquet").write_bytes(m.bytes(_parquet()))
    m.file(notes / f"{name}.metadata")
    verify_download(folder, ["config.json"], None, lambda *_: None)


# -- checkpoints -------------------------------------------------------------------------------------------


def _hf_folder(folder: Path, m: Mutator) -> None:
    """config.json, an index and two shards of a model; what is chosen of them is mutated."""
    chosen = m.random.choice(("config.json", "index", "header", "header", "header", "file"))
    weight_map = {}
    for number in (1, 2):
        header = {
            "__metadata__": {"format": "pt"},
            f"a{number}": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
            f"b{number}": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
        }
        shard = f"model-{number}.safetensors"
        weight_map |= {f"a{number}": shard, f"b{number}": shard}
        raw = encoded(m, header) if chosen == "header" else json.dumps(header).encode()
        data = len(raw).to_bytes(8, "little") + raw + bytes(32)
        m.write(folder / shard, m.bytes(data) if chosen == "file" else data, 0.05)
    index = {"metadata": {"total_size": 64}, "weight_map": weight_map}
    name = "model.safetensors.index.json"
    (folder / name).write_bytes(encoded(m, index) if chosen == "index" else json.dumps(index).encode())
    config = {"model_type": "qwen2", "torch_dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": 2}
    text = encoded(m, config) if chosen == "config.json" else json.dumps(config).encode()
    (folder / "config.json").write_bytes(text)
    for other in (name, "config.json"):
        m.file(folder / other, 0.05)


def safetensors_headers(folder: Path, m: Mutator) -> None:
    from npu_rl.recipes.checkpoints.weight_commands import _is_fp8
    from npu_rl.weights.checkpoints.other_files import other_files
    from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import HfCheckpoint

    _hf_folder(fresh(folder), m)
    m.write(folder / "tokenizer.json", b"{}", 0.05)
    target = folder / "copy"
    target.mkdir()
    with disk_errors(folder):
        checkpoint = HfCheckpoint(folder)
        list(checkpoint.entries())
        str(checkpoint.config)
        checkpoint.digest()
        _is_fp8(folder)
        if (folder / "tokenizer.json").stat().st_size < 100:
            other_files(folder).copy(folder, target)


def an_output_folder(folder: Path, m: Mutator) -> None:
    from npu_rl.weights.checkpoints.output_folder import (
        NOTE,
        OutputFolder,
        finished_sizes,
        unfinished_command,
    )

    fresh(folder)
    (folder / "a.safetensors").write_bytes(bytes(8))
    note: dict[str, Any] = {"command": "cast", "input": "/x", "digest": "d"}
    if m.random.random() < 0.5:
        note["files"] = {"a.safetensors": 8}
    m.write(folder / NOTE, encoded(m, note))
    unfinished_command(folder)
    finished_sizes(folder)
    output = OutputFolder(folder, "cast", Path("/x"), "d")
    output.require_unchanged()
    output.close()


def a_hash_list(folder: Path, m: Mutator) -> None:
    from npu_rl.weights.checkpoints.hash_list import NAME, verify_hashes, write_hashes

    fresh(folder)
    (folder / "a.safetensors").write_bytes(bytes(8))
    (folder / "b.json").write_bytes(b"{}")
    write_hashes(folder, 1, lambda _: None)
    m.write(folder / NAME, m.bytes((folder / NAME).read_bytes()), 0.2)
    verify_hashes(folder, 2, lambda _: None)


@functools.lru_cache(maxsize=1)
def _archive() -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": 1}))
        archive.writestr("archive/data/0", bytes(64))
    return memory.getvalue()


def a_cast_shard(folder: Path, m: Mutator) -> None:
    pytest.importorskip("torch")
    from npu_rl.weights.checkpoints.convert_weights import ConvertOptions
    from npu_rl.weights.tensors.npu_rl_tensors.conversion.tasks import opened, write_output
    from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout

    _hf_folder(fresh(folder), m)
    (folder / "out").mkdir()
    options = ConvertOptions(folder, folder / "out", OutputLayout("hf"), command="cast")
    task = {"of": options.to_json(), "output": str(folder / "out"), "file": "model-1.safetensors"}
    opened.cache_clear()
    with disk_errors(folder):
        write_output(task, lambda _: None)


def _dist_folder(folder: Path, m: Mutator) -> None:
    """A checkpoint of torch_dist, with a mutated `.metadata` or metadata.json, or something else for a file."""
    shutil.copytree(ROOT / "tests/tensors/torch_2_5_1", folder)
    (folder / ".metadata").write_bytes(m.bytes((folder / ".metadata").read_bytes()))
    config = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    (folder / "metadata.json").write_bytes(encoded(m, config))
    (folder / "common.pt").write_bytes(_archive())
    for name in (".metadata", "metadata.json", "__0_0.distcp", "common.pt"):
        m.file(folder / name, 0.05)


def checkpoint_folders(folder: Path, m: Mutator) -> None:
    """The folder of a run's checkpoints: its tracker, verl's steps with files of FSDP, of Megatron, of torch_dist."""
    from npu_rl.training.record.saved_checkpoints.checkpoint_folders import latest_step, recorded_step
    from npu_rl.training.record.saved_checkpoints.saved_steps import RoleFiles, SavedLayout, saved_steps

    fresh(folder)
    m.write(folder / "latest_checkpointed_iteration.txt", m.bytes(b"4"))
    for step in (f"global_step_{text}" for text in ("2", "4", "²", "9" * 12, "04", "-1")):
        (folder / step).mkdir()
    ranks, dist = folder / "global_step_2" / "actor", folder / "global_step_4" / "actor"
    ranks.mkdir()
    dist.mkdir()
    names = [ranks / f"{name}_world_size_1_rank_0.pt" for name in ("model", "optim", "extra_state")]
    names += [folder / "global_step_2" / "data.pt", folder / "global_step_4" / "data.pt"]
    for path in names:
        m.write(path, m.bytes(_archive()) if m.random.random() < 0.5 else _archive())
    _dist_folder(dist / "dist_ckpt", m)
    latest_step(folder)
    recorded_step(folder)
    for kind in ("fsdp", "torch_dist", "legacy"):
        str(saved_steps(folder, SavedLayout((RoleFiles("actor", kind),), 1, 1)))


def legacy_trackers(folder: Path, m: Mutator) -> None:
    pytest.importorskip("torch")
    from npu_rl.weights.tensors.npu_rl_tensors.formats.legacy_checkpoint import iteration_folder, rank_numbers

    fresh(folder)
    (folder / "iter_0000004" / "mp_rank_00").mkdir(parents=True)
    (folder / "iter_0000004" / "mp_rank_00" / "model_optim_rng.pt").write_bytes(_archive())
    tracker = folder / "latest_checkpointed_iteration.txt"
    m.write(tracker, m.bytes(b"4\n"))
    with disk_errors(folder):
        rank_numbers(iteration_folder(folder))


def dist_metadata_files(folder: Path, m: Mutator) -> None:
    pytest.importorskip("torch")
    from npu_rl.weights.tensors.npu_rl_tensors.formats.read_torch_dist import (
        read_dist_checkpoint,
        require_whole_files,
    )
    from npu_rl.weights.tensors.npu_rl_tensors.formats.tensor_views import OpenFiles

    _dist_folder(fresh(folder) / "dist", m)
    files = OpenFiles()
    try:
        with disk_errors(folder):
            require_whole_files(folder / "dist", files)
            for view in read_dist_checkpoint(folder / "dist", files).tensors.values():
                if view.name == "a":
                    view.read(tuple((0, size) for size in view.shape))
    finally:
        files.close()


# -- records and trees -------------------------------------------------------------------------------------


def a_source_tree(folder: Path, m: Mutator) -> None:
    """The Python files of a tree, which are read as text and never run."""
    from npu_rl.recipes.environment.environment_check import environment_faults
    from npu_rl.recipes.judgement.file_definitions import definitions_in
    from npu_rl.recipes.trainer_code.adaptation_switches import (
        headers_of,
        known_switches,
        patched_switches,
    )
    from npu_rl.recipes.trainer_code.citations import CitedCode
    from npu_rl.recipes.trainer_code.source_index import SourceIndex
    from npu_rl.recipes.trainer_keys.open_sections import OpenSections
    from npu_rl.rehearsal.executed_modules import executed_modules

    managers = fresh(folder) / "verl" / "workers" / "reward_manager"
    managers.mkdir(parents=True)
    (folder / "npu_rl_runtime").mkdir()
    (folder / "vllm_ascend").mkdir()
    annotations = m.random.choice(("int | None", "(" * 300, "a\\0b", "x." * 5000 + "y", "a" * 20_000))
    source = f'class B:\n    x: "{annotations}" = 1\n    y: Optional["B"] = None\n'.encode()
    source += b'import os\nX = {"a": 1}\n@register("naive")\nclass A:\n    def f(self, x=1):\n'
    source += b'        enabled("used")\n        return compute_score(x, **os.environ.get("VERL_X"))\n'
    source += m.random.choice(
        (
            *(
                b"",
                b"C: a" + b".a" * 2000 + b" = 1\n",
                b"not " * 2000 + b"a\n",
                b"f'" + b"{a}" * 10_000 + b"'",
            ),
            b"if " + b"not " * 90 + b"is_npu_available" + b".a" * 90 + b": pass\n",
        )
    )
    paths = [managers / "naive.py", folder / "npu_rl_runtime" / "used.py", folder / "verl" / "envs.py"]
    paths.append(folder / "vllm_ascend" / "config.py")
    for path in paths:
        m.write(path, m.bytes(source) if m.random.random() < 0.7 else source)
    patch = folder / "patchset" / "0001-a.patch"
    patch.parent.mkdir()
    m.write(patch, m.bytes(b"Subject: a\n\nSwitch: NPU_RL_ROUTER_BIAS\n\ndiff --git a/x b/x\n"))
    known_switches(folder, ["own"])
    patched_switches(headers_of(patch.parent))
    definitions_in(paths[0])
    index = SourceIndex(folder)
    index.find("verl.workers.reward_manager.naive.A")
    dict(index.texts("verl"))
    CitedCode(folder).text("verl/envs.py")
    for section in ("engine_kwargs.vllm.additional_config", "override_transformer_config.x"):
        OpenSections(index).names_in(section)
    index.fields("verl.workers.reward_manager.naive.B")
    executed_modules(folder, "verl.workers.reward_manager.naive")
    environment_faults({"VERL_NOBODY": "1"}, folder)


KINDS: tuple[Callable[[Path, Mutator], None], ...] = (
    parquet_rows,
    a_trainers_parquet,
    json_rows,
    packed_files,
    a_pylock,
    a_download,
    safetensors_headers,
    an_output_folder,
    a_hash_list,
    checkpoint_folders,
    a_source_tree,
)
NEVER_REFUSED = (
    a_download,
    a_source_tree,
    checkpoint_folders,
)  # what is wrong is a finding, or as none
TORCH_KINDS = (a_cast_shard, legacy_trackers, dist_metadata_files)


def check(kind: Callable[[Path, Mutator], None], folder: Path) -> None:
    outcome = run_cases(kind.__name__, lambda mutator: kind(folder / "case", mutator), accepted=True)
    assert not outcome.failures, "\n".join(outcome.failures)
    assert outcome.refused or kind in NEVER_REFUSED, "it hits nothing"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_mutated_file(kind: Callable[[Path, Mutator], None], tmp_path: Path) -> None:
    check(kind, tmp_path)


@pytest.mark.rehearsal
@pytest.mark.parametrize("kind", TORCH_KINDS, ids=lambda kind: kind.__name__)
def test_mutated_tensors(kind: Callable[[Path, Mutator], None], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    check(kind, tmp_path)
