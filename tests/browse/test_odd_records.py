"""Records that were renamed, damaged or written by others: shown as far as they can be read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from npu_rl.training.record.attempt import write_json
from npu_rl.training.record.recorded_run import recorded_run
from tests.browse.recorded import run, write_samples
from tests.browse.test_runs import Runs
from tests.in_process import run_here


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_a_renamed_run_has_its_folders_name(runs: Runs) -> None:
    run(runs.root, "demo", [{1: 0.1}], "stopped")
    (runs.root / "demo").rename(runs.root / "base")
    run(runs.root, "demo", [{1: 0.5}])
    rows = {row["name"]: row["state"] for row in runs.json("list")["runs"]}
    assert rows == {"base": "stopped", "demo": "done"}
    shown = runs("show", "base").stdout
    assert shown.startswith("base: stopped") and "as demo" in shown


def test_a_name_is_that_of_the_folder_of_runs_also_beside_a_record_of_that_name(runs: Runs) -> None:
    """People stand in another workspace's folder of runs, and each has a quickstart."""
    there = runs.folder / "other/runs"
    run(runs.root, "demo", [{1: 0.1}], "stopped")
    run(there, "demo")
    run(there, "only")

    def here(*words: str) -> subprocess.CompletedProcess[str]:
        return run_here(["runs", *words], runs.env, there)

    assert here("show", "demo").stdout.startswith("demo: stopped")
    assert here("show", "./demo").stdout.startswith("demo: done")
    refused = here("show", "only")
    assert refused.returncode == 1 and "Unknown run only" in refused.stderr and "./only" in refused.stderr
    del runs.env["NPU_RL_RUNS"]
    runs.env["NPU_RL_CONFIG"] = str(runs.folder / "none.yaml")
    assert here("show", "only").stdout.startswith("only: done")


@pytest.mark.parametrize("name", [[1], None, "../out"])
def test_the_name_in_a_record_is_not_used(runs: Runs, name: object) -> None:
    record = run(runs.root, "demo")
    run(runs.root, "other")
    write_json(record.folder / "run.json", {**record.facts, "name": name})
    assert [row["name"] for row in runs.json("list")["runs"]] == ["demo", "other"]


def test_an_unreadable_folder_is_named(runs: Runs) -> None:
    run(runs.root, "demo")
    (runs.root / "demo").rename(runs.root / "my run")
    assert runs.json("list")["unreadable"] == [str(runs.root / "my run")]
    assert f"Unreadable: {runs.root / 'my run'}: A run name has" in runs("list").stderr


def test_a_lost_node_is_the_cause_of_a_failure(runs: Runs) -> None:
    record = run(runs.root, "demo", [{1: 0.1}], "failed")
    log = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    record.attempts[-1].driver_log.write_text(f"Traceback (most recent call last):\n{log}")
    write_json(
        record.attempts[-1].lost_nodes, [{"host": "node3", "ip": "10.99.7.3", "reason": "no heartbeat"}]
    )
    shown = runs("show", "demo").stdout
    assert "1 node left the Ray cluster:" in shown and "node3 (10.99.7.3): no heartbeat" in shown
    assert "memory" not in shown
    assert "10.99.7.3" in runs.json("show", "demo")["failure"]["cause"]


def test_a_second_run_of_the_same_does_not_differ(runs: Runs) -> None:
    for number, name in enumerate(("demo", "demo-2")):
        own = {"NPU_RL_USAGE": str(runs.root / name / "attempts/1/usage")}
        run(runs.root, name, environment=own, recipe_digest=str(number) * 64)
    found = runs.json("compare", "demo", "demo-2")
    assert not any(found["differences"].values())
    run(runs.root, "demo-3", lr="1e-3", recipe_digest="3" * 64)
    assert [one["name"] for one in runs.json("compare", "demo", "demo-3")["differences"]["run"]] == [
        "recipe_digest"
    ]


def test_samples_of_a_model_that_the_run_no_longer_is(runs: Runs) -> None:
    record = run(runs.root, "demo", [{1: 0.1, 2: 0.2, 3: 0.3}, {2: 0.5}], "stopped")
    for step in (1, 2, 3):
        write_samples(record, step, [("a", f"of step {step}", 0.5)])
    os.utime(record.samples / "3.jsonl", (1.0, 1.0))  # written by the first attempt
    assert list(recorded_run(runs.root, "demo").sample_files()) == [1, 2]
    write_samples(record, 3, [("a", "again", 0.5)])  # of a step that is not logged yet
    attempt = record.begin_attempt(["driver"], {}, {}, "steps: 4\n")
    assert list(recorded_run(runs.root, "demo").sample_files()) == [1, 2, 3]
    attempt.end("stopped", 0)
    assert list(recorded_run(runs.root, "demo").sample_files()) == [1, 2]
