"""Benchmark of `npu-rl weights cast`: against writing as many bytes, with fsync, to the same disk.

    python -m benchmarks.weights_cast --lab DIR --python P [--shards N] [--shard-mb MB] [--rounds R] [--workers N]

DIR is a folder on the disk that is measured: it holds an input that is made once (weights of two shapes of
DeepSeek-V3's experts in FP8), and the outputs, which are removed. P has torch. In each round the floor comes once
before and once after the cast: one process that writes files of the output's sizes from memory, each with fsync. The
cast counts from the start of npu-rl to its end, with the import of torch in each worker. The input lies in the page
cache where it fits. Shown: each round, the medians, the median of the rounds' ratios, and the largest resident memory
of a process of the cast.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

import psutil

SHAPES = ((2048, 7168), (7168, 2048))
CHUNK = 4 * 1024 * 1024


def make_input(folder: Path, shards: int, megabytes: int) -> None:
    """Write FP8 weights with a bell's exponents, from one pool of bytes."""
    if (folder / "config.json").is_file():
        return
    folder.mkdir(parents=True)
    chosen = random.Random(0)
    bell = [
        min(126, int(abs(chosen.gauss(0, 1)) * 30) + 48) | chosen.choice((0, 128)) for _ in range(1 << 16)
    ]
    pool = bytes(bell) * (SHAPES[0][0] * SHAPES[0][1] >> 16)
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        header: dict[str, object] = {}
        contents: list[bytes] = []
        offset = number = 0
        while offset < megabytes * 1e6:
            rows, columns = SHAPES[number % 2]
            weight = f"model.layers.{shard}.mlp.experts.{number}.{('up', 'down')[number % 2]}_proj.weight"
            blocks = rows // 128, columns // 128
            scales = struct.pack(f"<{blocks[0] * blocks[1]}f", *([3e-4] * (blocks[0] * blocks[1])))
            for key, dtype, shape, content in (
                (weight, "F8_E4M3", (rows, columns), pool),
                (f"{weight}_scale_inv", "F32", blocks, scales),
            ):
                span = [offset, offset + len(content)]
                header[key] = {"dtype": dtype, "shape": shape, "data_offsets": span}
                offset += len(content)
                contents.append(content)
                weight_map[key] = name
            number += 1
        raw = json.dumps(header).encode()
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<Q", len(raw)) + raw)
            file.writelines(contents)
            os.fsync(file.fileno())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    quantization = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    config = {"model_type": "deepseek_v3", "num_hidden_layers": shards, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))


def time_floor(folder: Path, sizes: list[int]) -> float:
    """Return the seconds for writing files of these sizes."""
    data = os.urandom(CHUNK)
    folder.mkdir()
    started = time.perf_counter()
    for number, size in enumerate(sizes):
        with (folder / str(number)).open("wb", buffering=0) as file:
            left = size
            while left:
                left -= file.write(data[: min(left, CHUNK)])
            os.fsync(file.fileno())
    seconds = time.perf_counter() - started
    shutil.rmtree(folder)
    return seconds


def time_cast(source: Path, target: Path, python: str, workers: int) -> tuple[float, int]:
    """Return the seconds of a cast, and the largest resident memory of one of its processes."""
    argv = [sys.executable, "-m", "npu_rl", "weights", "cast", str(source), str(target)]
    argv += ["--python", python, "--workers", str(workers), "--json"]
    started = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    largest = 0
    while process.poll() is None:
        try:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            largest = max([largest, *(one.memory_info().rss for one in family)])
        except psutil.Error:
            pass
        time.sleep(0.05)
    seconds = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"the cast failed with exit status {process.returncode}")
    shutil.rmtree(target)
    return seconds, largest


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lab", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--shard-mb", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    source = options.lab / f"fp8-{options.shards}-{options.shard_mb}"
    make_input(source, options.shards, options.shard_mb)
    sizes = [2 * path.stat().st_size for path in source.glob("*.safetensors")]
    floors, casts, ratios, memory = [], [], [], 0
    for number in range(options.rounds):
        before = time_floor(options.lab / "floor", sizes)
        seconds, largest = time_cast(source, options.lab / "out", options.python, options.workers)
        after = time_floor(options.lab / "floor", sizes)
        floor = (before + after) / 2
        floors += [before, after]
        casts.append(seconds)
        ratios.append(seconds / floor)
        memory = max(memory, largest)
        print(
            f"round {number + 1}: floor {before:.1f}, {after:.1f} s; cast {seconds:.1f} s; {seconds / floor:.2f}"
        )
    print(
        f"{sum(sizes) / 1e9:.1f} GB out, {options.workers} workers: floor {statistics.median(floors):.1f} s, "
        f"cast {statistics.median(casts):.1f} s, median of the ratios {statistics.median(ratios):.2f}, "
        f"largest process {memory / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    main()
