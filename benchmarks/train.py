"""What `npu-rl train` costs over calling the trainer by hand, and what the quickstart takes in all.

    python -m benchmarks.train --workspace DIR --python P --rounds 5

DIR is a quickstart workspace, P has the packages of the extra `rehearsal`. By hand is the very command and
environment that `--dry-run` writes (run.sh), so the difference is npu-rl's own work: loading and checking the
recipe, verifying the workspace, asking the interpreter, composing the configuration, the record, the logs.
Rounds are interleaved; what is printed are medians. Memory is the largest sum of the proportional set sizes
(PSS) of all processes of a run, sampled every 0.25 s.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from npu_rl.training.monitor.metrics import read_metrics, seconds


class Memory:
    """The largest sum of PSS of the processes that carry a variable, in bytes."""

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak = 0

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.25):
            self.peak = max(self.peak, sum(map(self._pss, Path("/proc").glob("[0-9]*"))))

    def _pss(self, process: Path) -> int:
        try:
            if self._mark not in (process / "environ").read_bytes():
                return 0
            text = (process / "smaps_rollup").read_text()
        except OSError:
            return 0
        return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)


def timed(argv: Sequence[str], env: Mapping[str, str], log: Path) -> tuple[float, int]:
    """Seconds, and peak bytes. Ends the benchmark if the command fails."""
    mark = f"NPU_RL_BENCHMARK={os.urandom(8).hex()}"
    name, _, value = mark.partition("=")
    with log.open("wb") as file, Memory(mark) as memory:
        began = time.monotonic()
        code = subprocess.run(
            argv, env={**env, name: value}, stdout=file, stderr=file, check=False
        ).returncode
        took = time.monotonic() - began
    if code != 0:
        raise SystemExit(f"{' '.join(argv)} failed; see {log}")
    return took, memory.peak


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="steps of a round (default 5)")
    options = parser.parse_args()
    lab = Path(tempfile.mkdtemp(prefix="npu-rl-bench-"))
    env = {**os.environ, "NPU_RL_RUNS": str(lab / "runs")}
    words = ["--workspace", str(options.workspace), "--python", options.python]
    few = [f"steps={options.steps}", "reward.goal=null", "checkpoint.every=-1"]
    command = [sys.executable, "-m", "npu_rl", "train", "quickstart"]
    try:
        whole, memory = timed([*command, *words], env, lab / "whole.log")
        points = read_metrics(lab / "runs" / "quickstart" / "attempts" / "1" / "metrics.jsonl")
        steps = [took for point in points if (took := seconds(point.data)) is not None]
        times: dict[str, list[float]] = {"npu-rl train": [], "by hand": []}
        for number in range(options.rounds):
            run = [*command, f"name=round{number}", *few, *words]
            times["npu-rl train"].append(timed(run, env, lab / "launched.log")[0])
            subprocess.run([*run, "--dry-run"], env=env, capture_output=True, check=True)
            script = lab / "runs" / f"round{number}.dry-run" / "run.sh"
            times["by hand"].append(timed([str(script)], env, lab / "hand.log")[0])
        over = [a - b for a, b in zip(times["npu-rl train"], times["by hand"], strict=True)]
        each = statistics.median(steps)
        print(f"quickstart: {len(points)} steps in {whole:.1f} s, {each:.3f} s each, {memory / 1e9:.2f} GB")
        for name, rounds in times.items():
            print(f"{name}: {statistics.median(rounds):.2f} s for {options.steps} steps")
        print(f"overhead: {statistics.median(over):.2f} s ({min(over):.2f} to {max(over):.2f})")
    finally:
        shutil.rmtree(lab, ignore_errors=True)


if __name__ == "__main__":
    main()
