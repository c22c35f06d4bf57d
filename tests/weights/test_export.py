"""`weights export`: checkpoints of runs, small and written by torch, as Hugging Face folders."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import shutil
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from npu_rl.common.errors import HostError, UsageError, WeightsError
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.saved_checkpoints.run_checkpoint import run_checkpoint
from npu_rl.training.run.export_run import REPORT, ExportOptions, export_run
from npu_rl.weights.checkpoints.worker_pool import Task, Workers
from npu_rl.weights.tensors.npu_rl_tensors.safetensors_file import read_header
from tests.tensors import megatron_checkpoints as tiny
from tests.weights.inline_workers import InlineWorkers

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

FACTS = {"recipe": "r1", "manifest": "quickstart", "tree": "a" * 40, "commit": "b" * 40}
LOCK = b'{"lock_format": 1, "digest": "%s"}' % (b"c" * 64)


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return RunRecord.create(tmp_path / "runs", "first", FACTS, lock=LOCK)


def actor(record: RunRecord, step: int = 4, config: dict[str, Any] | None = None) -> Path:
    """What verl writes beside the tensors of a step."""
    folder = record.checkpoints / f"global_step_{step}" / "actor"
    (folder / "huggingface").mkdir(parents=True)
    content = {**(config or tiny.QWEN), "torch_dtype": "bfloat16"}
    (folder / "huggingface" / "config.json").write_text(json.dumps(content))
    (folder / "huggingface" / "tokenizer.json").write_text("{}")
    (record.checkpoints / "latest_checkpointed_iteration.txt").write_text(str(step))
    return folder


def write_fsdp(folder: Path, tensors: dict[str, Any]) -> None:
    torch.save(tensors, folder / "model_world_size_1_rank_0.pt")
    (folder / "fsdp_config.json").write_text('{"FSDP_version": 1, "world_size": 1}')


def export(
    record: RunRecord, target: Path, step: int | None = None, workers: Workers | None = None
) -> dict[str, Any]:
    options = ExportOptions(run_checkpoint(record, step), target, True, "npu-rl weights export first out")
    return export_run(options, workers or InlineWorkers())


def loaded(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    index = json.loads((folder / "model.safetensors.index.json").read_text())
    found: dict[str, Any] = {}
    for name in sorted(set(index["weight_map"].values())):
        found |= load_file(folder / name)
    assert {name: index["weight_map"][name] for name in found} == index["weight_map"]
    return found


def require_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def nothing_left(tmp_path: Path) -> bool:
    return sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


def test_fsdp(record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, as FSDP keeps them, and so config.json says; several shards, and all names where they come from."""
    monkeypatch.setattr("npu_rl.weights.tensors.npu_rl_tensors.conversion.units.UNIT", 5000)
    tensors = {name: value.float() for name, value in tiny.hf_tensors(tiny.QWEN).items()}
    write_fsdp(actor(record), tensors)
    content = export(record, tmp_path / "new" / "out")
    out = tmp_path / "new" / "out"
    require_equal(loaded(out), tensors)
    assert content["shards"] > 3 and content["config"] == ["torch_dtype: bfloat16 -> float32"]
    assert json.loads((out / "config.json").read_text()) == {**tiny.QWEN, "torch_dtype": "float32"}
    assert (out / "tokenizer.json").read_text() == "{}"
    assert json.loads((out / REPORT).read_text()) == content
    assert (content["run"], content["step"], content["recipe"]) == ("first", 4, "r1")
    assert (content["lock"], content["tree"], content["proven"]) == ("c" * 64, "a" * 40, True)
    audit = content["audit"]
    assert audit["result"] == "equal" and audit["b"]["path"] == str(out)
    assert audit["compared"]["values"] == sum(value.numel() for value in tensors.values())
    for path in out.glob("*.safetensors"):
        metadata = read_header(path).metadata
        assert metadata["format"] == "pt" and metadata["npu_rl.lock"] == "c" * 64
        assert metadata["npu_rl.run"] == "first" and metadata["npu_rl.step"] == "4"
    assert "c" * 64 in (out / "README.md").read_text()
    assert sorted(path.name for path in out.parent.iterdir()) == ["out"]


@pytest.mark.parametrize("config", [tiny.DEEPSEEK, tiny.QWEN, tiny.QWEN3_MOE])
def test_torch_dist_with_the_optimizers_state(
    config: dict[str, Any], record: RunRecord, tmp_path: Path
) -> None:
    tensors = tiny.hf_tensors(config)
    state = {
        "optimizer.state.exp_avg.decoder.final_layernorm.weight": torch.zeros(4),
        "chained_0.optimizer.state.fp32_param.embedding.word_embeddings.weight": torch.zeros(4),
    }
    folder = actor(record, config=config)
    tiny.write_dist(folder / "dist_ckpt", {**tiny.dist_tensors(config, tensors), **state})
    content = export(record, tmp_path / "out")
    assert content["checkpoint"]["format"] == "torch_dist"
    require_equal(loaded(tmp_path / "out"), tensors)


def test_torch_dist_with_the_plans_that_megatron_keeps_in_it(
    record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`all_local_plans` of .metadata: Megatron-core's class, with classes of torch's planner; nothing is imported."""
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

    tensors = tiny.hf_tensors(tiny.DEEPSEEK)
    folder = actor(record, config=tiny.DEEPSEEK) / "dist_ckpt"
    tiny.write_dist(folder, tiny.dist_tensors(tiny.DEEPSEEK, tensors))
    module = ModuleType("megatron.core.dist_checkpointing.strategies.torch")
    plan = type("MCoreSavePlan", (SavePlan,), {"__module__": module.__name__})
    setattr(module, plan.__name__, plan)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    metadata.all_local_plans = [plan([WriteItem(MetadataIndex("a"), WriteItemType.BYTE_IO)])]
    with monkeypatch.context() as patched:
        for parent in accumulate(module.__name__.split("."), "{}.{}".format):
            patched.setitem(sys.modules, parent, module)
        (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    export(record, tmp_path / "out")
    require_equal(loaded(tmp_path / "out"), tensors)


def test_legacy_with_the_recipe_s_model(record: RunRecord, tmp_path: Path) -> None:
    """Megatron's own folder has no config.json: it is that of model.path."""
    tensors = tiny.hf_tensors(tiny.DEEPSEEK)
    model = tiny.write_hf(tmp_path / "model", tiny.DEEPSEEK, tensors)
    written = tiny.write_legacy_deepseek(tmp_path / "legacy", tiny.DEEPSEEK, tensors, 2, [2, 2], 2, True)
    iteration = next(path for path in written.glob("*") if path.is_dir())
    shutil.copytree(iteration, record.checkpoints / "iter_0000004")
    (record.checkpoints / "latest_checkpointed_iteration.txt").write_text("4")
    with pytest.raises(WeightsError, match=r"The checkpoint has no config\.json"):
        export(record, tmp_path / "out")
    recipe = f"schema: 1\nname: x\ntitle: x\nextends: quickstart\nmodel: {{path: {model}, make: null}}\n"
    (record.folder / "recipe.yaml").write_text(recipe)
    content = export(record, tmp_path / "out")
    assert content["checkpoint"]["format"] == "legacy" and content["checkpoint"]["copies"] > 0
    require_equal(loaded(tmp_path / "out"), tensors)


def test_what_the_trainer_of_deepseek_v3_cann_saves(record: RunRecord, tmp_path: Path) -> None:
    """One file for each rank with a list of its models, and config.json in another folder."""
    tensors = tiny.hf_tensors(tiny.DEEPSEEK)
    folder = actor(record, config=tiny.DEEPSEEK)
    (folder / "huggingface").rename(folder / "hf_config_and_tokenizer")
    written = tiny.write_legacy_deepseek(tmp_path / "runs/l", tiny.DEEPSEEK, tensors, 2, [2, 2], 2, True)
    for path in written.glob("iter_*/mp_rank_*/*"):
        place = folder / "model" / path.parent.name / "model.pt"
        place.parent.mkdir(parents=True)
        torch.save([OrderedDict(torch.load(path, weights_only=False)["model"])], place)
    content = export(record, tmp_path / "out")
    assert content["checkpoint"]["format"] == "legacy" and content["checkpoint"]["copies"] > 0
    require_equal(loaded(tmp_path / "out"), tensors)
    assert (tmp_path / "out/tokenizer.json").read_text() == "{}"
    shutil.rmtree(tmp_path / "out")
    whole = folder / "model/mp_rank_00_000_000/model.pt"
    torch.save(torch.load(whole, weights_only=False) * 2, whole)
    with pytest.raises(WeightsError, match="virtual pipeline stages"):
        export(record, tmp_path / "out")
    for path in (folder / "model").glob("*_001"):  # as upstream saves it
        shutil.rmtree(path)
    torch.save(torch.load(whole, weights_only=False)[:1], whole)
    with pytest.raises(WeightsError, match="without the patch expert-checkpoint saves only that group"):
        export(record, tmp_path / "out")
    assert nothing_left(tmp_path)


def test_what_the_trainer_of_mindspeed_rl_grpo_saves(record: RunRecord, tmp_path: Path) -> None:
    """With the optimizer, the generators' states and the arguments of the run, which are objects of many classes."""
    import numpy

    tensors = tiny.hf_tensors(tiny.QWEN)
    model = tiny.write_hf(tmp_path / "runs/model", tiny.QWEN, tensors)
    written = tiny.write_legacy_qwen(tmp_path / "runs/l", tiny.QWEN, tensors, 2, 1)
    generators = {
        "random_rng_state": random.getstate(),
        "np_rng_state": numpy.random.get_state(),
        "torch_rng_state": torch.get_rng_state(),
        "rng_tracker_states": {"model-parallel-rng": torch.get_rng_state()},
    }
    for path in written.glob("iter_*/mp_rank_*/*"):
        rest = {
            "args": argparse.Namespace(params_dtype=torch.bfloat16, data_path=["a"], rank=numpy.int64(0)),
            "optimizer": {"optimizer": {"param_groups": [{"lr": 1e-6, "step": 4}]}},
            "opt_param_scheduler": {"max_lr": 1e-6, "num_steps": 4},
            "rng_state": [generators],
            "num_floating_point_operations_so_far": 0.0,
        }
        torch.save({**torch.load(path, weights_only=False), **rest}, path)
        torch.save({0: {"torch.bfloat16": torch.zeros(4)}}, path.with_name("distrib_optim.pt"))
    shutil.copytree(written / "iter_0000001", record.checkpoints / "iter_0000004")
    (record.checkpoints / "latest_checkpointed_iteration.txt").write_text("4")
    options = ExportOptions(run_checkpoint(record, None, model), tmp_path / "out", True, "export")
    content = export_run(options, InlineWorkers())
    assert content["checkpoint"]["format"] == "legacy" and content["audit"]["result"] == "equal"
    require_equal(loaded(tmp_path / "out"), tensors)


def test_a_step_that_is_there_and_steps_that_are_not(record: RunRecord, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"Run first has no checkpoint\b"):
        run_checkpoint(record, None)
    write_fsdp(actor(record, 6), {"a": torch.ones(2)})
    write_fsdp(actor(record, 4), {"a": torch.zeros(2)})
    with pytest.raises(WeightsError, match="The checkpoint of step 6 is not complete") as caught:
        run_checkpoint(record, 6)
    assert "it has recorded 4" in str(caught.value)
    with pytest.raises(WeightsError, match="no checkpoint of step 5") as caught:
        run_checkpoint(record, 5)
    assert "Steps that are there: 4, 6." in str(caught.value)
    (record.checkpoints / "latest_checkpointed_iteration.txt").write_text("6")
    assert run_checkpoint(record, None).step == 6
    export(record, tmp_path / "out", step=4)
    require_equal(loaded(tmp_path / "out"), {"a": torch.zeros(2)})
    (record.checkpoints / "latest_checkpointed_iteration.txt").write_text("8")
    with pytest.raises(WeightsError, match="no checkpoint of step 8") as caught:
        run_checkpoint(record, None)
    assert "as its newest" in str(caught.value)


def damaged(name: str, folder: Path) -> None:
    path = folder / "model_world_size_1_rank_0.pt"
    if name == "missing rank":
        path.rename(folder / "model_world_size_2_rank_0.pt")
        (folder / "fsdp_config.json").write_text('{"FSDP_version": 1, "world_size": 2}')
    elif name == "cut off":
        path.write_bytes(path.read_bytes()[:-100])
    elif name == "runs":
        torch.save({"a": Runs()}, path)
    elif name == "dtype":
        torch.save({"a": torch.zeros(2, dtype=torch.int64)}, path)
    elif name == "adapter":
        torch.save({"base_model.model.a.lora_A.weight": torch.zeros(2)}, path)
    else:  # of a model that has no table
        shutil.rmtree(folder / "huggingface")
        path.unlink()
        (folder / "fsdp_config.json").unlink()
        (folder / "huggingface").mkdir()
        (folder / "huggingface" / "config.json").write_text('{"architectures": ["OtherForCausalLM"]}')
        tiny.write_dist(folder / "dist_ckpt", {"a": torch.zeros(2)})


class Runs:
    def __reduce__(self) -> Any:
        return os.system, ("exit 1",)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing rank", "model_world_size_2_rank_1.pt"),
        ("cut off", "model_world_size_1_rank_0.pt"),
        ("runs", "Nothing in the file was run"),
        ("dtype", "Unsupported dtype"),
        ("adapter", "unmerged adapters"),
        ("unknown", "OtherForCausalLM"),
    ],
)
def test_checkpoints_that_are_refused(name: str, said: str, record: RunRecord, tmp_path: Path) -> None:
    folder = actor(record)
    write_fsdp(folder, {"a": torch.zeros(100)})
    damaged(name, folder)
    with pytest.raises(WeightsError) as caught:
        export(record, tmp_path / "out")
    assert said in str(caught.value)
    assert nothing_left(tmp_path)


def test_nothing_is_overwritten(record: RunRecord, tmp_path: Path) -> None:
    write_fsdp(actor(record), {"a": torch.zeros(2)})
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(UsageError, match="The output folder exists"):
            export(record, tmp_path / name)
    with pytest.raises(HostError):
        export(record, tmp_path / "file" / "out")
    with pytest.raises(UsageError, match="The output folder is inside the run's folder"):
        export(record, record.checkpoints / "out")
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "runs"]


class Between(InlineWorkers):
    """Does something to a shard once it is written."""

    def __init__(self, act: Callable[[Path], None]) -> None:
        super().__init__()
        self._act = act

    def run(
        self,
        tasks: Sequence[Task],
        on_result: Callable[[Any], None],
        on_progress: Callable[[int], None],
    ) -> None:
        super().run(tasks, on_result, on_progress)
        for task in tasks:
            if task.name == "conversion.tasks.write_output":
                self._act(Path(task.arguments["output"], task.arguments["file"]))


def test_a_value_that_did_not_arrive(record: RunRecord, tmp_path: Path) -> None:
    """The audit reads what is on the disk; one changed bit and nothing is put in place."""
    write_fsdp(actor(record), {"a": torch.zeros(5, 3)})

    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)

    with pytest.raises(WeightsError, match="The export differs from the checkpoint") as caught:
        export(record, tmp_path / "out", workers=Between(flip))
    assert "such as a at [4, 2]" in str(caught.value)
    assert nothing_left(tmp_path)
