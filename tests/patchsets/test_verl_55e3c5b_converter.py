"""The patch converter-expert-parallel of patchset verl/55e3c5b: upstream's own script, and upstream's way back."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.bundled import runtime_root
from npu_rl.standins import INJECTED, NPU
from tests.patchsets.conftest import Patched
from tests.runtime.converter_ranks import processes
from tests.runtime.tiny_deepseek import make

torch = pytest.importorskip("torch")
for _needed in ("transformers", "accelerate", "tensordict", "einops"):
    pytest.importorskip(_needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

RUNNER = Path(__file__).with_name("run_converter.py")
SCRIPT = "scripts/converter_hf_to_mcore.py"
WITHIN = (  # what the script imports within its functions
    "transformers.models.deepseek_v3.modeling_deepseek_v3 megatron.core.dist_checkpointing.strategies.torch"
)
UPSTREAM = {
    "volcengine+verl": ("55e3c5bc09c85dba09f736eef476f110ad641b75", "verl", SCRIPT),
    "NVIDIA+Megatron-LM": ("a845aa7e12b3a117e24c2352b9e3e60bad2e3a17", "megatron/core"),  # core_v0.12.1
    "Ascend+MindSpeed": ("7ff818c4", "mindspeed"),
}


@pytest.fixture(scope="session")
def before(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """verl as it is, with what it imports, and our runtime."""
    tree = tmp_path_factory.mktemp("converter") / "before"
    tree.mkdir()
    for name, (commit, *paths) in UPSTREAM.items():
        archive = ["git", f"--git-dir={upstreams / name / 'repo'}", "archive", commit, *paths]
        packed = subprocess.run(archive, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", str(tree)], input=packed.stdout, check=True)
    shutil.copytree(runtime_root(), tree / "npu_rl_runtime", ignore=shutil.ignore_patterns("__pycache__"))
    return tree


@pytest.fixture(scope="session")
def after(before: Path, patched: Patched) -> Path:
    """The same with the patched script."""
    tree = before.with_name("after")
    tree.mkdir()
    for entry in before.iterdir():
        if entry.name != "scripts":
            (tree / entry.name).symlink_to(entry)
    (tree / SCRIPT).parent.mkdir()
    (tree / SCRIPT).write_bytes(patched("verl/55e3c5b", SCRIPT, (before / SCRIPT).read_bytes()))
    return tree


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("model") / "hf")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """174 MB, almost all of it in experts."""
    sizes = {"hidden_size": 512, "moe_intermediate_size": 2048}
    return make(tmp_path_factory.mktemp("large") / "hf", shard="40MB", **sizes)


def run(tree: Path, jobs: list[Any], ranks: int, folder: Path, **environment: str) -> list[list[Any]]:
    """What each job gave, on each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jobs.json").write_text(json.dumps(jobs, default=str))
    path = [INJECTED, NPU]
    more = {"NPU_RL_STANDINS": "cpu", "TORCHDYNAMO_DISABLE": "1", **environment}
    arguments = [str(RUNNER), str(tree), "jobs.json", "."]
    for done in processes([sys.executable, "-W", "ignore", *arguments], ranks, folder, path, **more):
        assert done.returncode == 0, done.stdout[-4000:]
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    return [[of_rank[number] for of_rank in found] for number in range(len(jobs))]


def script(tree: Path, hf: Path, folder: Path, layout: Any = None, **environment: str) -> list[Any]:
    """Two processes run the script's function; what each found."""
    job = {"hf": hf, "output": folder / "out", "imports": f"npu_rl_runtime.converter {WITHIN}"}
    if layout is not None:
        job["layout"] = layout
    (found,) = run(tree, [["script", job]], 2, folder, **environment)
    return found


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def test_a_rank_takes_the_memory_of_its_share(before: Path, after: Path, large: Path, tmp_path: Path) -> None:
    """Upstream's two processes each hold the whole model, and their stage's experts once more; ours half of it."""
    whole = size(large)
    for rank in script(before, large, tmp_path / "before"):
        assert rank["peak"] > whole
    for rank in script(after, large, tmp_path / "after", {"ep_size": 2}):
        assert rank["peak"] < 0.5 * whole + 24e6
        assert {".metadata", "common.pt", "metadata.json"} < set(rank["left"])


def test_switched_off_it_is_upstream(after: Path, large: Path, tmp_path: Path) -> None:
    off = {"NPU_RL_CONVERTER_EXPERT_PARALLEL": "0"}
    for rank in script(after, large, tmp_path, {}, **off):
        assert rank["peak"] > size(large)


def test_back_by_verls_own_converter_it_is_the_same(after: Path, model: Path, tmp_path: Path) -> None:
    """What ours made at one layout, verl loads at another and turns back: every bit, by the way of its rollout.

    The router's bias comes back as verl holds it after loading, in bfloat16 (its wrapper makes it so). And on every
    layout ours writes what Megatron-core's own model asks a checkpoint for, no more and no less.
    """
    layouts: list[dict[str, Any]] = [
        {"pipeline": 2, "expert": 2, "layers": [3, 1]},
        {"pipeline": 4, "expert": 1},
        {"pipeline": 1, "expert": 4},
    ]
    elsewhere: list[dict[str, Any]] = [
        {"pipeline": 1, "expert": 4},
        {"pipeline": 2, "expert": 2},
        {"pipeline": 2, "expert": 1, "layers": [1, 3]},
    ]
    jobs: list[Any] = []
    for number, (made, loaded) in enumerate(zip(layouts, elsewhere, strict=True)):
        checkpoint = tmp_path / str(number)
        jobs.append(["convert", {"hf_folder": model, "output": checkpoint, **made}])
        jobs.append(["come_back", {"hf": model, "checkpoint": checkpoint, **loaded}])
        jobs.append(["plan", {"hf": model, **made}])
    found = run(after, jobs, 4, tmp_path / "ranks")
    for converted, back, plan in zip(found[0::3], found[1::3], found[2::3], strict=True):
        assert sum(converted) == 129
        for rank in back:
            assert len(rank) == 129
            biases = {name for name in rank if name.endswith("e_score_correction_bias")}
            assert {rank[name] for name in biases} == {"rounded to torch.bfloat16"}
            assert {verdict for name, verdict in rank.items() if name not in biases} == {"same"}
        assert all(rank["theirs"] == rank["ours"] for rank in plan)


def test_one_process_reads_what_several_made(after: Path, model: Path, tmp_path: Path) -> None:
    """EP2 x PP2 at EP1 x PP1: the logits are transformers', verl's merger gives the model back, both forms load.

    Logits in float32: 4 layers of sums over at most 96 numbers, so some 1e-6 of the largest. That the comparison is
    sensitive: without the bias of one router it is off by a thousand times more.
    """
    layout = {"pipeline": 2, "expert": 2}
    run(
        after,
        [["convert", {"hf_folder": model, "output": tmp_path / "made", **layout}]],
        4,
        tmp_path / "four",
    )
    of = {"hf": model, "checkpoint": tmp_path / "made"}
    (logits,), (forms,), (merged,) = run(
        after, [["logits", of], ["forms", of], ["merge", of]], 1, tmp_path / "one"
    )
    assert logits["difference"] < 1e-5 * logits["scale"] < 0.01 * logits["without_bias"]
    assert forms == {"same": True, "compared": 54, "kinds": ["SequentialMLP", "TEGroupedMLP"]}
    assert len(merged) == 129
    assert {verdict for name, verdict in merged.items() if "bias" not in name} == {"same"}
    assert {verdict for name, verdict in merged.items() if "bias" in name} == {"rounded to torch.bfloat16"}
