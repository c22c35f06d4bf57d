"""Records of runs as `train` writes them, without a trainer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from npu_rl.training.monitor.metrics import MetricsWriter
from npu_rl.training.record.attempt import write_json
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.saved_checkpoints.checkpoint_folders import LATEST

RECIPE = """\
name: demo
steps: {steps}
reward: {{goal: 0.8}}
cluster: {{nodes: 1, dies_per_card: 2}}
optimizer: {{lr: {lr}}}
"""


OF_AN_ATTEMPT = (
    "recipe_files",
    "recipe_path",
    "recipe_digest",
    "overrides",
    "steps",
    "goal",
    "drift",
    "overruled",
)
FACTS = {
    "recipe_files": {"bundled:quickstart.yaml": "0" * 64},
    "recipe_digest": "1" * 64,
    "overrides": [],
    "steps": 4,
    "goal": 0.8,
    "manifest": "quickstart",
    "tree": "a" * 40,
    "commit": "b" * 40,
    "workspace": "/home/you/ws",
    "interpreter": {"path": "/usr/bin/python3", "version": "3.11.7", "packages": {"ray": "2.42.1"}},
}


def run(
    root: Path,
    name: str,
    attempts: Sequence[Mapping[int, float]] = ({1: 0.1, 2: 0.2},),
    outcome: str | None = "done",
    *,
    lr: str = "3e-3",
    host: str = "h",
    environment: Mapping[str, str] | None = None,
    lock: bytes | None = None,
    **more: object,
) -> RunRecord:
    """A run of one attempt for each mapping of steps to rewards, all but the last one stopped.

    outcome: None leaves the last attempt without an end, as if npu-rl had been killed.
    """
    known: dict[str, object] = {"recipe": name, **FACTS, **more}
    ran = {key: known.pop(key) for key in OF_AN_ATTEMPT if key in known}
    record = RunRecord.create(root, name, known, lock=lock)
    for number, rewards in enumerate(attempts, 1):
        given = {"OMP_NUM_THREADS": "1", **(environment or {})}
        recipe = RECIPE.format(steps=4, lr=lr)
        attempt = record.begin_attempt(
            ["driver"], given, {"hostname": host}, recipe, inherited={}, details=ran
        )
        attempt.driver_log.write_text("")
        with MetricsWriter(attempt.metrics) as writer:
            for step, reward in rewards.items():
                data = {"critic/score/mean": reward, "timing_s/step": 2.0, "timing_s/gen": 1.5}
                writer.write(step, {**data, "perf/throughput": 100}, now=1000.0 * number + step)
        write_json(attempt.nodes, {"nodes": [{"host": "n1"}, {"host": "n2"}]})
        if number < len(attempts):
            attempt.end("stopped", 1)
        elif outcome is None:
            attempt._run_lock.close()
        else:
            attempt.end(outcome, 0 if outcome == "done" else 1)
    return record


def checkpoint(record: RunRecord, step: int) -> None:
    (record.checkpoints / f"global_step_{step}").mkdir()
    (record.checkpoints / LATEST).write_text(str(step))


def write_samples(record: RunRecord, step: int, rows: Sequence[tuple[str, str, float | None]]) -> None:
    lines = (json.dumps({"input": a, "output": b, "score": c, "step": step}) for a, b, c in rows)
    (record.samples / f"{step}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def documented(command: str, page: str) -> set[str]:
    """The top-level keys of a row of docs/json.md's table on runs; RUN stands for those of a row of the list."""
    part = page.partition("## `npu-rl runs`")[2].partition("\n## ")[0]
    row = next(line for line in part.splitlines() if line.startswith(f"| `{command}` |")).split(" | ", 1)[1]
    flat = row
    while flat != (flat := re.sub(r"[{\[][^{}\[\]]*[}\]]", "", flat)):
        pass
    keys = {key for words in re.findall(r"`([^`]*)`", flat) for key in re.findall(r"[a-z_]+", words)}
    if "RUN" in re.sub(r"`[^`]*`", "", flat):
        keys |= set(re.findall(r"`([a-z_]+)`", part.partition("\nRUN stands for ")[2].partition(".\n")[0]))
    return keys
