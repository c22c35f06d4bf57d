"""`weights convert`: against the formats as the tests spell them out, and as torch itself reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import NpuRlError, UsageError, WeightsError
from npu_rl.weights.checkpoints.convert_weights import ConvertOptions
from npu_rl.weights.checkpoints.worker_pool import Task
from npu_rl.weights.tensors import ROOT
from npu_rl.weights.tensors.npu_rl_tensors.conversion import units
from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout
from npu_rl.weights.tensors.npu_rl_tensors.layouts.placements import LegacyRanks
from tests.tensors import megatron_checkpoints as tiny
from tests.tensors import synthetic_671b
from tests.weights import toy_fp8
from tests.weights.inline_workers import DIST, HF, InlineWorkers, convert, equal, unfinish

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal


@pytest.mark.parametrize("config", [tiny.DEEPSEEK, tiny.QWEN, tiny.QWEN3, tiny.QWEN3_MOE])
def test_torch_reads_what_was_fused_and_back_it_is_the_model(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read by torch's own reader; in several files, and larger tensors in several chunks."""
    from torch.distributed import checkpoint

    monkeypatch.setattr(units, "UNIT", 4000)
    monkeypatch.setattr(units, "CHUNK", 300)
    tensors = tiny.hf_tensors(config)
    hf = tiny.write_hf(tmp_path / "hf", config, tensors)
    (hf / "tokenizer.json").write_text("{}")
    report = convert(hf, tmp_path / "dist")
    assert report["files"] > 3
    expected = tiny.dist_tensors(config, tensors)
    found = {key: torch.zeros_like(tensor) for key, tensor in expected.items()}
    checkpoint.load(found, checkpoint_id=tmp_path / "dist", no_dist=True)
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key
    assert equal(hf, tmp_path / "dist")
    convert(tmp_path / "dist", tmp_path / "back", HF, config=hf)
    assert equal(hf, tmp_path / "back")
    assert (tmp_path / "back/tokenizer.json").is_file()
    assert not list(tmp_path.rglob("*.part")) and not list(tmp_path.rglob("*.places.json"))


@pytest.mark.parametrize(
    "ranks",
    [
        LegacyRanks(1, (4,), 1, True),
        LegacyRanks(4, (1, 2, 1), 2, True),
        LegacyRanks(2, (2, 2), 4, False),
        LegacyRanks(2, (4,), 2, True),
    ],
)
def test_a_rank_has_what_mindspeed_llm_gives_it(
    ranks: LegacyRanks, deepseek: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    hf, tensors = deepseek
    convert(hf, tmp_path / "legacy", OutputLayout("legacy", ranks))
    expected = tiny.write_legacy_deepseek(
        tmp_path / "expected",
        tiny.DEEPSEEK,
        tensors,
        ranks.tensor,
        list(ranks.layers),
        ranks.expert,
        ranks.experts_over_tensor,
    )
    same_files(tmp_path / "legacy", expected)
    for file in (tmp_path / "legacy").rglob(
        "*.pt"
    ):  # torch's default since 2.6, which Megatron does not change
        torch.load(file, weights_only=True)


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("tied", [False, True])
def test_a_rank_of_qwen_has_what_mindspeed_llm_gives_it(stages: int, tied: bool, tmp_path: Path) -> None:
    """And back it is the model. The stages of tied embeddings can't be several: the last would have a copy."""
    config = tiny.QWEN | {"tie_word_embeddings": tied}
    tensors = tiny.hf_tensors(config)
    if tied:
        del tensors["lm_head.weight"]
    hf = tiny.write_hf(tmp_path / "hf", config, tensors)
    layout = OutputLayout("legacy", LegacyRanks(4, stages=stages))
    if tied and stages > 1:
        with pytest.raises(WeightsError, match="with tied embeddings"):
            convert(hf, tmp_path / "legacy", layout)
        return
    convert(hf, tmp_path / "legacy", layout)
    same_files(tmp_path / "legacy", tiny.write_legacy_qwen(tmp_path / "expected", config, tensors, 4, stages))
    assert equal(hf, tmp_path / "expected")
    convert(tmp_path / "legacy", tmp_path / "back", HF, config=hf)
    assert equal(hf, tmp_path / "back")


def same_files(made: Path, expected: Path) -> None:
    names = sorted(path.relative_to(expected) for path in expected.rglob("*.pt"))
    assert names == sorted(path.relative_to(made) for path in made.rglob("*.pt"))
    for name in names:
        one = torch.load(expected / name, weights_only=False)
        other = torch.load(made / name, weights_only=False)
        assert one["model"].keys() == other["model"].keys()
        for key, tensor in one["model"].items():
            assert torch.equal(other["model"][key], tensor), (name, key)
            assert other["model"][key].dtype == tensor.dtype
        assert {key: one[key] for key in one if key != "model"} == {
            k: other[k] for k in other if k != "model"
        }
    assert (made / "latest_checkpointed_iteration.txt").read_text() == "1"


def test_modules_of_transformer_engine_find_their_extra_states(
    deepseek: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Those that the model of Pai-Megatron-Patch asks for, by layer; each a list of one, as Megatron-core saves it."""
    import io

    from torch.distributed.checkpoint import FileSystemReader

    convert(deepseek[0], tmp_path / "dist")
    metadata = FileSystemReader(tmp_path / "dist").read_metadata()
    found = metadata.state_dict_metadata.keys()
    attention = ("q_down_proj", "q_up_proj", "kv_down_proj", "kv_up_proj", "proj")
    shared = [f"self_attention.linear_{one}" for one in attention]
    shared += ["input_layernorm", "self_attention.core_attention"]
    expected = {"decoder.final_layernorm._extra_state/shard_0_1"}
    for layer in range(4):
        own = [
            f"mlp.{part}linear_fc{n}"
            for n in (1, 2)
            for part in ([""] if layer == 0 else ["shared_experts."])
        ]
        own += [] if layer == 0 else ["pre_mlp_layernorm"]
        expected |= {f"decoder.layers.{layer}.{one}._extra_state/shard_0_1" for one in (*shared, *own)}
        if layer:
            at = f"decoder.layers.{layer}.mlp.experts.experts.linear_fc"
            expected |= {f"{at}{n}._extra_state/shard_{e}_8" for n in (1, 2) for e in range(8)}
    assert {key for key in found if "_extra_state" in key} == expected
    for index, at in metadata.storage_data.items():
        if "_extra_state" in index.fqn:
            content = (tmp_path / "dist" / at.relative_path).read_bytes()[at.offset : at.offset + at.length]
            assert torch.load(io.BytesIO(content)) == [None]


class Interrupted(InlineWorkers):
    """Ends before the task with this number, as a kill would, in the middle of its file."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def run(
        self, tasks: Sequence[Task], on_result: Callable[[Any], None], on_progress: Callable[[int], None]
    ) -> None:
        for number, task in enumerate(tasks):
            if task.name == "conversion.tasks.write_output" and number == self.at:
                half = Path(task.arguments["output"], task.arguments["file"] + ".part")
                half.parent.mkdir(parents=True, exist_ok=True)
                half.write_bytes(b"half")
                raise KeyboardInterrupt
            super().run([task], on_result, on_progress)


def test_it_goes_on_where_it_was_interrupted(
    deepseek: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there is no checkpoint to anybody until it is whole."""
    monkeypatch.setattr(units, "UNIT", 4000)
    hf, tensors = deepseek
    target = tmp_path / "dist"
    with pytest.raises(KeyboardInterrupt):
        convert(hf, target, workers=Interrupted(3))
    assert not (target / ".metadata").exists() and not (target / "metadata.json").exists()
    before = {path.name: path.stat().st_mtime_ns for path in target.glob("__*.distcp")}
    assert len(before) == 3
    report = convert(hf, target)
    assert report["files_kept"] == 3
    assert before.items() <= {path.name: path.stat().st_mtime_ns for path in target.iterdir()}.items()
    assert equal(hf, target)
    assert convert(hf, target)["seconds"] == 0
    changed = tensors | {"model.norm.weight": tensors["model.norm.weight"] + 1}
    other = tiny.write_hf(tmp_path / "other", tiny.DEEPSEEK, changed)
    with pytest.raises(WeightsError, match="output folder belongs to another input"):
        convert(other, target)
    min(target.glob("__*.distcp")).write_bytes(b"")
    with pytest.raises(UsageError, match="changed since it was written"):
        convert(hf, target)


@pytest.mark.parametrize("kind", ["torch_dist", "hf"])
def test_a_kill_between_the_last_file_and_the_note(
    kind: Any, deepseek: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """`.metadata` was there, the places that it is made of were not, and no command went on."""
    hf, out = deepseek[0], tmp_path / "out"
    files = convert(hf, out, OutputLayout(kind))["files"]
    unfinish(out)
    assert convert(hf, out, OutputLayout(kind))["files_kept"] == files
    assert equal(hf, out)
    last = out / (".metadata" if kind == "torch_dist" else "config.json")
    last.unlink()
    with pytest.raises(UsageError, match="changed since it was written") as raised:
        convert(hf, out, OutputLayout(kind))
    assert last.name in str(raised.value)


def test_what_cannot_be_converted_is_named(deepseek: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    hf, tensors = deepseek
    name = "model.layers.2.mlp.experts.3.up_proj.weight"

    def variant(folder: str, changes: dict[str, Any], **config: Any) -> Path:
        changed = {key: tensor for key, tensor in {**tensors, **changes}.items() if tensor is not None}
        return tiny.write_hf(tmp_path / folder, tiny.DEEPSEEK | config, changed)

    cases: dict[str, tuple[Path, OutputLayout]] = {
        f"It lacks 1 tensors of the model, such as {name}": (variant("lost", {name: None}), DIST),
        "1 of them, such as model.layers.0.odd": (
            variant("odd", {"model.layers.0.odd": torch.ones(1)}),
            DIST,
        ),
        r"It is \[7, 16\]; by the model's config.json it is \[8, 16\]": (
            variant("shape", {name: tensors[name][:7].clone()}),
            DIST,
        ),
        "It is torch.int8": (variant("dtype", {name: tensors[name].to(torch.int8)}), DIST),
        "`attention_bias` is True": (variant("bias", {}, attention_bias=True), DIST),
        "the stages have": (hf, OutputLayout("legacy", LegacyRanks(1, (3,), 1))),
        "Missing table of names for Qwen3ForCausalLM": (
            tiny.write_hf(tmp_path / "qwen3", tiny.QWEN3, tiny.hf_tensors(tiny.QWEN3)),
            OutputLayout("legacy", LegacyRanks(2)),
        ),
        "a model without experts has no expert groups": (
            tiny.write_hf(tmp_path / "qwen", tiny.QWEN, tiny.hf_tensors(tiny.QWEN)),
            OutputLayout("legacy", LegacyRanks(1, (3,), 2)),
        ),
        "4 layers can't be divided evenly among 3": (hf, OutputLayout("legacy", LegacyRanks(1, stages=3))),
        "8 experts can't be dealt out evenly to 3": (hf, OutputLayout("legacy", LegacyRanks(1, (4,), 3))),
    }
    for number, (text, (source, layout)) in enumerate(cases.items()):
        target = tmp_path / f"out{number}"
        with pytest.raises(NpuRlError, match=text):
            convert(source, target, layout)
        assert not target.exists()


MEMORY = """
import sys, json
from pathlib import Path
import npu_rl_tensors.conversion.tasks as tasks
import torch.distributed.checkpoint.filesystem
arguments = json.loads(sys.argv[1])
def memory(which):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(which))
before = memory("VmRSS:")
Path("/proc/self/clear_refs").write_text("5")
plan = tasks.plan_output(arguments, print)
for file in plan["files"]:
    tasks.write_output({**arguments, "file": file}, lambda count: None)
tasks.finish_output(arguments, print)
print(json.dumps([plan["report"]["largest_in_memory"], memory("VmHWM:") - before]))
"""
SIZES = {"hidden_size": 512, "moe_intermediate_size": 512, "n_routed_experts": 128, "num_hidden_layers": 3}
OVER_TWO = OutputLayout("legacy", LegacyRanks(2, (3,), 1, experts_over_tensor=True))


@pytest.mark.parametrize(
    ("changes", "layout", "largest", "copies", "room"),
    [
        ({"num_hidden_layers": 1, "vocab_size": 49152, "hidden_size": 512}, DIST, 49152 * 512 * 2, 2, 40e6),
        (SIZES, OVER_TWO, 200_000_000, 1.2, 0),
    ],
    ids=["two tensors for torch_dist", "a rank's file and a fifth of it"],
)
def test_a_worker_takes_little_memory(
    changes: dict[str, int], layout: OutputLayout, largest: int, copies: float, room: float, tmp_path: Path
) -> None:
    """200 MB of tensors of 50 MB; and two ranks of 200 MB, most of it experts of 0.5 MB. Above the imports."""
    config = tiny.DEEPSEEK | changes
    hf = tiny.write_hf(tmp_path / "hf", config, tiny.hf_tensors(config))
    (tmp_path / "out").mkdir()
    options = ConvertOptions(hf, tmp_path / "out", layout)
    arguments = json.dumps({"of": options.to_json(), "output": str(options.target)})
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEMORY, arguments],
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    planned, peak = json.loads(done.stdout.splitlines()[-1])
    assert planned >= largest and peak < copies * planned + room, (planned, peak)


def test_the_files_of_671b(tmp_path: Path) -> None:
    """By arithmetic, for the published sizes: every value is in one place, and what a worker holds."""
    import math

    from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import units as files_of
    from npu_rl.weights.tensors.npu_rl_tensors.layouts.model_sizes import model_sizes

    every = toy_fp8.tensors(synthetic_671b.CONFIG)
    in_fp8 = sum(tensor.dtype == torch.float8_e4m3fn for tensor in every.values())
    assert (len(every), in_fp8) == (synthetic_671b.TENSORS, synthetic_671b.FP8) == (46_183, 45_808)
    model = model_sizes(synthetic_671b.PUBLISHED, "")
    ranks = LegacyRanks(4, (7, 7, 8, 8, 8, 8, 8, 7), 8, experts_over_tensor=True)
    for output in (DIST, OutputLayout("legacy", ranks)):
        layout = output.placements(model)
        sizes = dict.fromkeys(layout.by_name, 2)
        assert layout.by_name.keys() == {name for name in every if not name.startswith("model.layers.61.")}
        placed = dict.fromkeys(layout.stored, 0)
        for placements in layout.by_name.values():
            for placement in placements:
                placed[placement.stored_key] += math.prod(stop - start for start, stop in placement.hf_box)
        assert placed == {key: math.prod(spec.shape) for key, spec in layout.stored.items()}
        whole = sum(math.prod(layout.shape(name)) for name in layout.by_name)
        assert whole == 671_026_419_200
        largest = max(unit.bytes for unit in files_of(output, layout, sizes))
        assert largest == (4_293_085_184 if output is DIST else 6_773_018_624), largest
