"""Benchmark of `npu-rl weights convert`, `audit`, `export` and the list of hashes, in seconds per 100 GB.

    python -m benchmarks.weights_formats --lab DIR --python P [--experts N] [--rounds R] [--workers N]

DIR is a folder on the disk that is measured. It holds an input that is made once, a DeepSeek-V3 in BF16 of two layers
with the published sizes but for the number of experts and the vocabulary, and the outputs, which are removed. P has
torch. In each round, what writes is measured beside one process that writes files of the input's sizes with fsync, and
what reads beside one that reads the input's files; each command counts from the start of npu-rl to its end. The input
lies in the page cache where it fits, for commands and plain reads alike. Shown: each round with the load average,
and medians; CPU time, of the command and its workers, says more than seconds where others use the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.weights_cast import time_floor
from npu_rl.training.record.run_record import RunRecord
from npu_rl.weights.tensors.npu_rl_tensors.layouts.model_sizes import model_sizes
from npu_rl.weights.tensors.npu_rl_tensors.layouts.name_tables import entries
from npu_rl.weights.tensors.npu_rl_tensors.safetensors_file import header_bytes

CHUNK = 8 * 1024 * 1024
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "torch_dtype": "bfloat16",
    "vocab_size": 16160,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 2,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
RECIPE = """\
schema: 1
name: bench
title: TP4 PP2 EP4
extends: deepseek-v3-cann-256die
model: {{path: {model}, architecture: null}}
actor: {{parallel: {{tensor: 4, pipeline: 2, expert: 4}}}}
overrides: {{actor_rollout_ref.actor.megatron.pipeline_parallel_num_layer_list: [1, 1]}}
"""


def make_input(folder: Path, experts: int, shards: int = 8) -> None:
    """Write the input from random bytes, of which none is NaN or infinite in BF16."""
    if (folder / "config.json").is_file():
        return
    folder.mkdir(parents=True)
    config = CONFIG | {"n_routed_experts": experts}
    pool = bytes(byte & 0xBF for byte in os.urandom(CHUNK))
    placed = entries(model_sizes(config, ""), "core-0.12")
    shapes = list({source.name: source.shape for entry in placed for source in entry.sources}.items())
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        own = shapes[shard * len(shapes) // shards : (shard + 1) * len(shapes) // shards]
        tensors = [(key, "F32" if key.endswith("bias") else "BF16", shape) for key, shape in own]
        with (folder / name).open("wb") as file:
            file.write(header_bytes(tensors, {"format": "pt"}))
            for key, dtype, shape in tensors:
                left = math.prod(shape) * (4 if dtype == "F32" else 2)
                while left:
                    left -= file.write(pool[: min(left, CHUNK)])
                weight_map[key] = name
            os.fsync(file.fileno())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config))


def time_read(folder: Path) -> float:
    """Return the seconds for reading the weights of a folder."""
    buffer = bytearray(CHUNK)
    started = time.perf_counter()
    for path in folder.glob("*.safetensors"):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - started


Times = tuple[float, float]
"""Seconds of a program from its start to its end, and of CPU time of it and all that it started."""


def timed(argv: list[str], folder: Path, lab: Path) -> Times:
    """Run a program that has to succeed."""
    env = {**os.environ, "NPU_RL_RUNS": str(lab / "runs"), "PYTHONPATH": os.getcwd()}
    started, before = time.perf_counter(), os.times()
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{argv} failed: {done.stderr[-2000:]}")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, cpu


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lab", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    lab = options.lab.resolve()
    source, dist, legacy = lab / f"bf16-{options.experts}", lab / "dist", lab / "legacy"
    make_input(source, options.experts)
    sizes = [path.stat().st_size for path in source.glob("*.safetensors")]
    recipe = lab / "bench.yaml"
    recipe.write_text(RECIPE.format(model=source))
    if not (lab / "runs" / "bench").is_dir():
        record = RunRecord.create(lab / "runs", "bench", {"recipe": "bench"})
        actor = record.checkpoints / "global_step_0" / "actor"
        (actor / "huggingface").mkdir(parents=True)
        shutil.copyfile(source / "config.json", actor / "huggingface" / "config.json")
        (actor / "dist_ckpt").symlink_to(dist)
        (record.checkpoints / "latest_checkpointed_iteration.txt").write_text("0")

    def npu_rl(*words: str | Path) -> Times:
        argv = [sys.executable, "-m", "npu_rl", "weights", *map(str, words), "--python", options.python]
        return timed([*argv, "--workers", str(options.workers), "--json"], lab, lab)

    names = " ".join(f"'{path.name}'" for path in source.glob("*.safetensors"))
    steps: dict[str, tuple[str, Callable[[], Times]]] = {
        "convert to torch_dist": ("write", lambda: npu_rl("convert", source, dist, "--format", "torch_dist")),
        "convert to legacy": ("write", lambda: npu_rl("convert", source, legacy, "--layout", recipe)),
        "audit of torch_dist": ("read", lambda: npu_rl("audit", source, dist)),
        "export of torch_dist": ("write", lambda: npu_rl("export", "bench", lab / "out")),
        "hashes, written": ("read", lambda: npu_rl("check", source, "--write-hashes")),
        "hashes, verified": ("read", lambda: npu_rl("check", source, "--verify-hashes")),
        "sha256sum, one process": ("read", lambda: timed(["sh", "-c", f"sha256sum {names}"], source, lab)),
    }
    found: dict[str, list[tuple[float, float, float]]] = {}
    for number in range(options.rounds):
        for what, (floor, step) in steps.items():
            plain = time_floor(lab / "floor", sizes) if floor == "write" else time_read(source)
            seconds, cpu = step()
            found.setdefault(what, []).append((seconds, cpu, seconds / plain))
            load = os.getloadavg()[0]
            print(
                f"round {number + 1}, load {load:.1f}: {what} {seconds:.1f} s, {cpu:.1f} s of CPU; "
                f"plain {floor} {plain:.1f} s",
                flush=True,
            )
        for folder in (dist, legacy, lab / "out"):
            shutil.rmtree(folder)
        (source / "npu-rl-sha256.txt").unlink()
    size = sum(sizes) / 1e9
    for what, rounds in found.items():
        seconds, cpu, ratio = (statistics.median(one) for one in zip(*rounds, strict=True))
        print(
            f"{what}: {seconds / size * 100:.0f} s and {cpu / size * 100:.0f} s of CPU time per 100 GB, "
            f"{ratio:.2f} x a plain {steps[what][0]}"
        )
    print(f"{size:.1f} GB, {options.workers} workers, {options.rounds} rounds")


if __name__ == "__main__":
    main()
