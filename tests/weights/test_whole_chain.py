"""The whole way, by the commands: FP8, cast, check, convert, the trainer's own load and save, export, audits."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.python_roots import INJECTED, REHEARSAL
from npu_rl.training.record.run_record import RunRecord
from tests.support import clean_env, run_cli
from tests.tensors.megatron_checkpoints import read_hf
from tests.weights import toy_fp8
from tests.weights.gloo_ranks import processes

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.rehearsal

TENSORS, VALUES = 797, 1_350_712  # of the 9 layers; with those of multi-token prediction 913
CAST, MTP = 744, 116
LOADS = """\
schema: 1
name: loads
title: the toy model on the stack of deepseek-r1-zero
extends: deepseek-r1-zero-256die
model: {path: bf16, architecture: null}
"""
RANKS = """\
schema: 1
name: ranks
title: the toy model in the files of deepseek-v3-cann's ranks, TP4 PP8 EP8
extends: deepseek-v3-cann-256die
model: {path: bf16, architecture: null}
overrides:
  actor_rollout_ref.actor.megatron.pipeline_parallel_num_layer_list: [1, 1, 1, 1, 1, 1, 2, 1]
"""


@pytest.fixture(scope="module")
def fp8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = toy_fp8.write(tmp_path_factory.mktemp("toy") / "fp8")
    toy_fp8.write_tokenizer(folder)
    return folder


def npu_rl(words: list[str | Path], folder: Path) -> dict[str, Any]:
    """A command's JSON; all of them run in `folder`."""
    env = clean_env(folder.parent) | {"NPU_RL_RUNS": str(folder.parent / "runs")}
    done = run_cli(["weights", *words, "--python", sys.executable, "--json"], env, folder, timeout=300)
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def counts(a: Path, b: str, folder: Path) -> Mapping[str, int]:
    """Tensors by what an audit found; every one of both sides is among them, but for those of `a`'s prediction."""
    report = npu_rl(["audit", a, b], folder)
    assert report["result"] == "equal"
    found = {state: of["tensors"] for state, of in report["counts"].items() if state != "copies"}
    assert sum(found.values()) == TENSORS == report["b"]["tensors"]
    assert sum(of["values"] for state, of in report["counts"].items() if state != "copies") == VALUES
    assert report["one_sided_in_all"]["mtp_only_in_a"] == report["a"]["tensors"] - TENSORS
    return found


@pytest.mark.pypi
def test_from_fp8_to_the_export_of_a_run_without_a_step(fp8: Path, code_tree: Path, tmp_path: Path) -> None:
    """What verl's checkpoint manager saves of what verl has loaded is the cast, bit for bit."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "loads.yaml").write_text(LOADS)
    cast = npu_rl(["cast", fp8, "bf16"], folder)
    left_out = [name for name in cast["mtp_left_out"] if not name.endswith("_scale_inv")]
    assert (cast["cast"], len(left_out)) == (CAST, MTP)
    assert npu_rl(["check", "bf16", "--recipe", "loads.yaml"], folder)["ok"]
    converted = npu_rl(["convert", "bf16", "dist", "--layout", "loads.yaml"], folder)
    assert (converted["tensors"], converted["rounded"]) == (TENSORS, [])

    facts = {"recipe": "loads", "manifest": "deepseek-r1-zero", "tree": "a" * 40, "commit": "b" * 40}
    record = RunRecord.create(tmp_path / "runs", "no-step", facts, lock=b'{"digest": "%s"}' % (b"c" * 64))
    load_and_save(code_tree, folder / "bf16", folder / "dist", record.checkpoints / "global_step_0" / "actor")
    (record.checkpoints / "latest_checkpointed_iteration.txt").write_text("0")
    exported = npu_rl(["export", "no-step", "out"], folder)
    assert (exported["step"], exported["checkpoint"]["format"]) == (0, "torch_dist")
    assert exported["audit"]["result"] == "equal"

    assert counts(Path("bf16"), "out", folder) == {"equal": TENSORS}
    assert counts(fp8, "out", folder) == {"cast": CAST, "equal": TENSORS - CAST}
    require_same_bits(folder / "bf16", folder / "out")


def load_and_save(code: Path, model: Path, checkpoint: Path, output: Path) -> None:
    """Two ranks, each with half of the experts."""
    sizes = {"tensor": 1, "pipeline": 1, "context": 1, "expert": 2, "expert_tensor": 1}
    program = Path(__file__).with_name("run_megatron_load.py")
    words = [sys.executable, "-W", "ignore", program, model, checkpoint, output, json.dumps(sizes)]
    output.mkdir(parents=True)
    for done in processes(list(map(str, words)), 2, output.parent, [code, INJECTED, REHEARSAL]):
        assert done.returncode == 0, done.stdout[-3000:]


def require_same_bits(one: Path, other: Path) -> None:
    """By the library, without npu-rl's own reading."""
    first, second = read_hf(one), read_hf(other)
    assert first.keys() == second.keys() and len(first) == TENSORS
    for name, tensor in first.items():
        assert second[name].dtype == tensor.dtype, name
        assert torch.equal(second[name].view(torch.uint8), tensor.view(torch.uint8)), name
    biases = [tensor for name, tensor in first.items() if name.endswith("e_score_correction_bias")]
    assert {bias.dtype for bias in biases} == {torch.float32} and len(biases) == 7


def test_from_fp8_to_the_files_of_256_ranks_and_back(fp8: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "ranks.yaml").write_text(RANKS)
    npu_rl(["cast", fp8, "bf16"], folder)
    converted = npu_rl(["convert", "bf16", "legacy", "--layout", "ranks.yaml"], folder)
    assert converted["files"] == 256 == len(list((folder / "legacy").glob("iter_*/mp_rank_*/*.pt")))
    npu_rl(["convert", "legacy", "back", "--format", "hf", "--model-config", "bf16"], folder)
    assert counts(fp8, "legacy", folder) == {"cast": CAST, "equal": TENSORS - CAST}
    assert counts(Path("bf16"), "back", folder) == {"equal": TENSORS}
    require_same_bits(folder / "bf16", folder / "back")
