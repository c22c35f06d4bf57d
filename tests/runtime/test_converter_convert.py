"""Real ranks convert a tiny DeepSeek-V3, with Megatron-core 0.12.1 of the quickstart's tree: no verl, no MindSpeed."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npu_rl.bundled import runtime_root
from tests.runtime.converter_ranks import command, convert, processes
from tests.runtime.tiny_deepseek import edit, make

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.rehearsal


@pytest.fixture(scope="module")
def path(code_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """PYTHONPATH: `megatron` and `npu_rl_runtime`, and nothing else of the tree."""
    folder = tmp_path_factory.mktemp("path")
    (folder / "megatron").symlink_to(code_tree / "megatron")
    (folder / "npu_rl_runtime").symlink_to(runtime_root())
    return [folder]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("model") / "hf")


@pytest.fixture
def plain(path: list[Path]) -> Callable[[Path], dict[str, Any]]:
    """All tensors of a checkpoint, by Megatron-core's own reader, in a process of its own."""
    code = (
        "import sys, torch, torch.distributed as dist\n"
        "from megatron.core.dist_checkpointing import load_plain_tensors\n"
        "dist.init_process_group('gloo')\n"
        "for one in sys.argv[1:]: torch.save(load_plain_tensors(one), one + '.pt')\n"
    )

    def read(*checkpoints: Path) -> Any:
        names = [str(one) for one in checkpoints]
        (done,) = processes(
            [sys.executable, "-W", "ignore", "-c", code, *names], 1, checkpoints[0].parent, path
        )
        assert done.returncode == 0, done.stdout[-3000:]
        return [torch.load(name + ".pt") for name in names]

    return read


def hf_tensors(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for file in folder.glob("*.safetensors"):
        found |= load_file(file)
    return found


def test_every_layout_gives_the_same_checkpoint(
    model: Path, path: list[Path], plain: Any, tmp_path: Path
) -> None:
    """EP and PP 1, 2 and 4 and an uneven split; a rank opens only the files that it needs."""
    layouts: dict[int, list[dict[str, Any]]] = {
        1: [{}],
        2: [{"pipeline": 2, "layers": [1, 3]}, {"expert": 2}],
        4: [{"pipeline": 4}, {"pipeline": 2, "expert": 2, "layers": [3, 1]}, {"expert": 4, "check": True}],
    }
    made = []
    for ranks, jobs in layouts.items():
        outputs = [tmp_path / f"{ranks}-{number}" for number in range(len(jobs))]
        wanted = [
            {"hf_folder": model, "output": output, **job} for output, job in zip(outputs, jobs, strict=True)
        ]
        for job in convert(wanted, ranks, tmp_path / f"ranks{ranks}", path):
            assert {"layout", "peak"} < set(job[0]), job[0]
            assert sum(of_rank["tensors"] for of_rank in job) == 129
            if ranks == 4:
                assert min(of_rank["files"] for of_rank in job) < len(list(model.glob("*.safetensors")))
        made += outputs
    first, *others = plain(*made)
    for other in others:
        assert other.keys() == first.keys()
        assert all(
            torch.equal(other[key], first[key]) and other[key].dtype == first[key].dtype for key in first
        )
    hf = hf_tensors(model)
    experts = [f"model.layers.2.mlp.experts.{expert}" for expert in range(8)]
    for key, expected in {
        "embedding.word_embeddings.weight": hf["model.embed_tokens.weight"],
        "output_layer.weight": hf["lm_head.weight"],
        "decoder.layers.0.mlp.linear_fc1.weight": torch.cat(
            [hf[f"model.layers.0.mlp.{half}_proj.weight"] for half in ("gate", "up")]
        ),
        "decoder.layers.2.mlp.experts.experts.linear_fc1.weight": torch.stack(
            [torch.cat([hf[f"{one}.{half}_proj.weight"] for half in ("gate", "up")]) for one in experts]
        ),
        "decoder.layers.2.mlp.experts.experts.linear_fc2.weight": torch.stack(
            [hf[f"{one}.down_proj.weight"] for one in experts]
        ),
        "decoder.layers.3.mlp.router.expert_bias": hf["model.layers.3.mlp.gate.e_score_correction_bias"],
    }.items():
        assert torch.equal(first[key], expected), key
        assert first[key].dtype == expected.dtype == (torch.float32 if "bias" in key else torch.bfloat16)


def test_a_rank_takes_the_memory_of_its_share(path: list[Path], tmp_path: Path) -> None:
    """154 MB of experts, one dense stage of little: the peak is a rank's share, its largest tensor and 24 MB."""
    model = make(tmp_path / "hf", shard="40MB", hidden_size=512, moe_intermediate_size=2048)
    small = make(tmp_path / "small")
    jobs = [
        {"hf_folder": small, "output": tmp_path / "warm"},  # what it imports is no part of what is measured
        {"hf_folder": model, "output": tmp_path / "apart", "expert": 2},
    ]
    jobs[0]["expert"] = 2
    _, ranks = convert(jobs, 2, tmp_path / "ranks", path)
    whole = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    for rank in ranks:
        assert rank["bytes"] < 0.55 * whole
        assert rank["peak"] < rank["bytes"] + 512 * 2048 * 2 + 24e6, (rank, whole)


def test_what_cannot_be_converted_is_refused_on_every_rank(
    model: Path, path: list[Path], tmp_path: Path
) -> None:
    """Nothing is written; the one that does convert, with tensors of a layer that is left out, is."""
    import shutil

    from safetensors.torch import load_file, save_file

    def variant(name: str, **keys: Any) -> Path:
        folder = shutil.copytree(model, tmp_path / name)
        edit(folder, **keys)
        return Path(folder)

    def with_tensor(folder: Path, name: str, tensor: Any) -> Path:
        file = max(folder.glob("*.safetensors"))
        save_file(load_file(file) | {name: tensor}, file)
        index = folder / "model.safetensors.index.json"
        text = json.loads(index.read_text())
        text["weight_map"][name] = file.name
        index.write_text(json.dumps(text))
        return folder

    occupied = tmp_path / "occupied"
    occupied.mkdir()
    (occupied / "mine.txt").write_text("precious")
    one = torch.ones(1)
    expert = "model.layers.3.mlp.experts.7.down_proj.weight"  # no tensor of rank 0
    cut = variant("cut")
    (last := max(cut.glob("*.safetensors"))).write_bytes(last.read_bytes()[:-7])
    gone = variant("gone")
    max(gone.glob("*.safetensors")).unlink()
    cases = {
        "2 pipeline stages x 2 expert groups are 4 ranks, but 2 were": {
            "hf_folder": model,
            "pipeline": 2,
            "expert": 2,
        },
        "occupied is there and not an empty folder": {"hf_folder": model, "output": occupied},
        "rank 1 of 2: ": {"hf_folder": with_tensor(variant("shape"), expert, one)},
        "are quantised": {
            "hf_folder": with_tensor(variant("scales"), "model.layers.0.mlp.up_proj.weight_scale_inv", one)
        },
        "has 1 tensors that config.json's model has no place for, model.layers.0.self_attn.o_proj.bias": {
            "hf_folder": with_tensor(variant("bias"), "model.layers.0.self_attn.o_proj.bias", one)
        },
        "lacks 38 tensors of this model, model.layers.4.": {
            "hf_folder": variant("deeper", num_hidden_layers=5)
        },
        "is stored as F64": {
            "hf_folder": with_tensor(variant("wide"), "model.norm.weight", one.double().repeat(32))
        },
        "was cut off": {"hf_folder": cut},
        "lacks 1 of the files": {"hf_folder": gone},
        "set it to 0": {"hf_folder": variant("mtp", num_nextn_predict_layers=1)},
    }
    jobs: list[dict[str, Any]] = [
        {"output": tmp_path / f"out{number}", "expert": 2} | case
        for number, case in enumerate(cases.values())
    ]
    more = with_tensor(variant("more"), "model.layers.4.eh_proj.weight", one)
    jobs.append({"hf_folder": more, "output": tmp_path / "good", "expert": 2})
    *refused, good = convert(jobs, 2, tmp_path / "ranks", path)
    for text, ranks in zip(cases, refused, strict=True):
        assert [text in rank.get("error", "") for rank in ranks] == [True, True], (text, ranks)
    assert "error" not in good[0]
    assert "WARNING: 1 tensors of layers from 4 on" in (tmp_path / "ranks" / "rank-0.log").read_text()
    assert (tmp_path / "good" / "metadata.json").exists()
    assert sorted(file.name for file in occupied.iterdir()) == ["mine.txt"]
    assert not list(tmp_path.glob(".*")) and not list(tmp_path.glob("out*"))


def test_a_conversion_that_is_killed_leaves_nothing_that_loads(
    model: Path, path: list[Path], tmp_path: Path
) -> None:
    """Killed while it reads, and again when all is written; the other rank ends, too. The next finds its way."""
    jobs = [{"hf_folder": model, "output": tmp_path / "out", "expert": 2}]
    for when in ("read", "put"):
        killed, other = processes(command(jobs, when), 2, tmp_path, path)
        assert killed.returncode == -signal.SIGKILL, killed.stdout
        assert other.returncode != 0
        assert not (tmp_path / "out").exists()
        left = {file.name for file in (tmp_path / ".out.incomplete").iterdir()}
        assert ("metadata.json" in left) == (when == "put")
    (again,) = convert(jobs, 2, tmp_path / "ranks", path)
    assert "error" not in again[0]
    assert (tmp_path / "out" / "metadata.json").exists()
    assert not (tmp_path / ".out.incomplete").exists()


def test_a_rank_that_cannot_write_ends_them_all(model: Path, path: list[Path], tmp_path: Path) -> None:
    """No file may grow above 16 kB on rank 1; all are told, and nothing stays."""
    import shlex

    jobs = [{"hf_folder": model, "output": tmp_path / "out", "expert": 2}]
    line = f"[ {{rank}} = 0 ] || ulimit -f 16; exec {shlex.join(command(jobs))}"
    # What they were told is in their files; a process whose torch was interrupted now and then aborts at its very end.
    processes(["bash", "-c", line], 2, tmp_path, path)
    for rank in range(2):
        error = json.loads((tmp_path / f"{rank}.jsonl").read_text())["error"]
        assert "incomplete failed: rank 1: " in error and "File too large" in error
    assert not list(tmp_path.glob("*out*")) and not list(tmp_path.glob(".*"))
