"""A stranger's record of a run, as `report` reads it: every file of it mutated, the page whole all the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.hostile.mutate import Mutator
from tests.report.made_run import ENVIRONMENT, FACTS, LOCK, RECIPE, alarm, metrics


def a_reported_run(folder: Path, m: Mutator) -> None:
    """A record with two attempts, samples and validations, beside another run."""
    from npu_rl.training.record.recorded_run import recorded_run
    from npu_rl.training.report.gather_report import gather_run
    from npu_rl.training.report.report_page import report_page

    shutil.rmtree(folder, ignore_errors=True)
    node = {"host": "a", "ip": "10.0.0.1", "packages": {"torch": "1"}, "problems": ["x"], "differ": []}
    files: dict[str, Any] = {
        "run.json": {
            **FACTS,
            "name": "r",
            "id": "0" * 32,
            "created": "2026-01-01T00:00:00Z",
            "accepted_faults": {"a": "b"},
        },
        "lock.json": LOCK,
        "samples/2.jsonl": {"input": "q", "output": "a", "score": 1.0, "step": 2},
        "samples/validation/2.jsonl": {"input": "q", "output": "a", "score": 0.0, "step": 2},
    }
    for number in (1, 2):
        attempt = {
            "command.json": {"launcher": 1, "command": ["a"], "started": "2026-01-01T00:00:00Z"},
            "environment.json": ENVIRONMENT,
            "host.json": {"hostname": "h", "memory": 1, "cpus": 2},
            "nodes.json": {"nodes": [node, node]},
            "end.json": {"code": 0, "outcome": "done", "ended": "2026-01-01T00:01:00Z", "signal": "SIGTERM"},
            "drift.json": {"reason": "x", "files": []},
            "metrics.jsonl": {"step": number, "time": 1.0, "data": metrics(number)},
            "alarms.jsonl": {"time": 1.0, **alarm("Step 1: x")},
        }
        files |= {f"attempts/{number}/{name}": body for name, body in attempt.items()}
    chosen = m.random.choice(list(files))
    for name, body in files.items():
        path = folder / "r" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((m.json(body) if name == chosen else json.dumps(body).encode()) + b"\n")
        m.file(path, 0.03)
    recipe = folder / "r" / "recipe.yaml"
    m.write(recipe, m.bytes(RECIPE.encode()), 0.03)
    run = gather_run(recorded_run(folder, "r"))
    page = report_page(run, "now", other=run)
    assert page.startswith(b"<!doctype html>") and page.endswith(b"</html>")
    assert page.count(b"<script") == 3
