"""Records of runs, written by the code that writes them in earnest, with as many steps as a test wants."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_rl.training.monitor.metrics import MetricsWriter
from npu_rl.training.record.attempt import Attempt
from npu_rl.training.record.run_record import RunRecord
from tests.support import ROOT

TREE = "d" * 40
LOCK = (ROOT / "manifests/deepseek-v3-cann.lock.json").read_bytes()
FACTS = {
    "recipe": "quickstart",
    "recipe_files": {"bundled:quickstart.yaml": "0" * 64},
    "overrides": ["steps=8", "optimizer.lr=3e-3"],
    "manifest": "quickstart",
    "tree": TREE,
    "commit": "c0ffee" * 6 + "c0ff",
    "interpreter": {
        "path": "/opt/python",
        "version": "3.11.7",
        "packages": {"torch": "2.13.0", "ray": "2.42.1"},
    },
}
RECIPE = "schema: 1\nname: quickstart\nsteps: 8\ncluster: {dies_per_card: 2}\n"
ENVIRONMENT = {"NPU_RL_SEED": "1", "HCCL_BUFFSIZE": "300"}


HOSTILE = (
    "</script><script>document.title='x'</script><img src=x onerror=\"document.title='x'\">"
    "' onload='x\" onload=\"\u202eevil\u2066\x00\x1b[</dd></table><!--"
)
_BEGUN = 1_700_000_000


def metrics(step: int, phase: float = 0.0) -> dict[str, float]:
    """Return twenty metrics of a step, as verl names them."""
    wave = math.sin(step / 9 + phase)
    phases = {
        f"timing_s/{name}": 2 + wave + place for place, name in enumerate(("gen", "reward", "ref", "adv"))
    }
    return {
        "critic/score/mean": step / 1000 + wave / 10,
        "response_length/mean": 900 + 50 * wave,
        "response_length/max": 1024.0,
        "response_length/min": 3.0,
        "response_length/clip_ratio": 0.25,
        "actor/entropy": 2 - wave,
        "actor/kl_loss": 0.01 * step,
        "actor/ppo_kl": 0.001,
        "training/rollout_probs_diff_mean": 1e-5 * (2 + wave),
        "training/rollout_probs_diff_max": 1e-3,
        "training/rollout_probs_diff_std": 1e-6,
        "actor/grad_norm": 0.3 + wave / 10,
        "actor/lr": 1e-6,
        "perf/throughput": 60 + wave,
        "perf/max_memory_allocated_gb": 40 + wave,
        "perf/max_memory_reserved_gb": 41 + wave,
        "timing_s/step": 20 + wave,
        **phases,
    }


def made_record(root: Path, name: str = "demo", facts: Mapping[str, object] = FACTS) -> RunRecord:
    """Return a new record, with a lock."""
    return RunRecord.create(root, name, facts, lock=LOCK)


def made_attempt(
    record: RunRecord,
    steps: Iterable[int],
    *,
    alarms: Sequence[Mapping[str, object]] = (),
    environment: Mapping[str, str] = ENVIRONMENT,
    recipe: str = RECIPE,
    end: str | None = "done",
) -> Attempt:
    """Return an attempt with steps, alarms after their last one, and a node; it goes on if it has no end."""
    host = {"hostname": "here", "memory": 64_000_000_000, "cpus": 8}
    names = ("recipe_files", "recipe_path", "overrides", "overruled", "drift", "goal")
    ran = {"steps": 8, **{name: record.facts[name] for name in names if name in record.facts}}
    words = ["python", "-m", "trainer"]
    attempt = record.begin_attempt(words, environment, host, recipe, inherited={}, details=ran)
    with MetricsWriter(attempt.metrics) as writer:
        for step in steps:
            writer.write(step, metrics(step), _BEGUN + step)
    for alarm in alarms:
        attempt.add_alarm({"count": 1, **alarm})
    node = {"host": "node-a", "ip": "10.0.0.1", "tree": TREE, "packages": {"torch": "2.13.0"}}
    node |= {"stack": {"cann": "8.2.RC1"}, "problems": ["no route"]}
    attempt.nodes.write_text(json.dumps({"nodes": [node]}))
    if end is not None:
        attempt.close(end, 0 if end == "done" else 1)
    return attempt


def hostile_record(root: Path) -> None:
    """Write a record with `HOSTILE` in each text that others write, and as a name beside other names."""
    record = made_record(root, facts={**FACTS, "overruled": {"rule": "reason"}})
    attempt = made_attempt(record, [1], alarms=[alarm("Step 1: x")], recipe=f"# {HOSTILE!r}\n", end="failed")
    attempt.lost_nodes.write_text(json.dumps([{"host": "a", "ip": "b", "reason": "c"}]))
    for path in (*record.folder.glob("*.json"), *attempt.folder.glob("*.json*")):
        if path.name != "metrics.jsonl":
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            path.write_text("".join(json.dumps(_hostile(json.loads(line))) + "\n" for line in lines))
    attempt.driver_log.write_text(f"Traceback (most recent call last):\nValueError: {HOSTILE}\n")
    with MetricsWriter(attempt.metrics) as writer:
        writer.write(2, {**metrics(2), f"val-core/{HOSTILE}{'w' * 10_000}/acc": 0.5})
    raw = b'{"input": "raw \xff\xfe", "output": "bytes \x80", "score": 2.0}'
    row = {"input": HOSTILE, "output": HOSTILE, "score": 1.0}
    write_samples(record, 1, [row, {"input": "\ud800", "output": HOSTILE}, raw])


def _hostile(value: Any) -> Any:
    if isinstance(value, dict):
        kept = ("id", "started", "ended", "outcome")
        found = {key: one if key in kept else _hostile(one) for key, one in value.items()}
        return {**found, HOSTILE: HOSTILE} if all(isinstance(one, str) for one in found.values()) else found
    if isinstance(value, list):
        return [_hostile(one) for one in value]
    return HOSTILE if isinstance(value, str) else value


def write_samples(record: RunRecord, step: int, rows: Sequence[Mapping[str, object] | bytes]) -> None:
    """Write the samples of a step; bytes are a line as it is."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    (record.samples / f"{step}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))


def alarm(message: str, kind: str = "nan") -> dict[str, object]:
    """Return an alarm as `Watch` raises it, at the time of the step that it names."""
    found = re.match(r"Step (\d+):", message)
    step = int(found[1]) if found else None
    place = {} if step is None else {"time": _BEGUN + step + 0.5}
    words = {"kind": kind, "message": message, "cause": f"cause of {message}", "place": "actor/entropy"}
    return {**words, "hint": "", "fatal": False, "step": step, **place}
