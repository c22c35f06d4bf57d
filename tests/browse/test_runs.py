"""`runs list`, `show` and `compare`: real records, whatever state they are in, and what is printed of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.bundled import data_root
from npu_rl.common.errors import HostError
from npu_rl.common.masking import Secrets
from npu_rl.training.monitor.metrics import MetricsWriter
from npu_rl.training.record.attempt import now
from npu_rl.training.record.run_record import RunRecord
from tests.browse.recorded import RECIPE, checkpoint, documented, run, write_samples
from tests.in_process import run_here
from tests.support import ROOT, clean_env

JSON_PAGE = (ROOT / "docs/json.md").read_text(encoding="utf-8")


class Runs:
    """A folder of runs, and the commands on it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "runs"
        self.env = {**clean_env(folder), "NPU_RL_RUNS": str(self.root)}
        self.folder = folder

    def __call__(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = run_here(["runs", *words], self.env, self.folder)
        assert done.returncode == code, done.stderr
        return done

    def json(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self(*words, "--json").stdout)
        assert documented(words[0], JSON_PAGE) == found.keys()
        return found


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    yield Runs(tmp_path)


# -- list ----------------------------------------------------------------------------------------------


def test_the_list_has_each_state(runs: Runs) -> None:
    run(runs.root, "a-done")
    run(runs.root, "b-failed", [{}], "failed")
    run(runs.root, "c-killed", [{1: 0.5}], None, host=os.uname().nodename)
    run(runs.root, "d-unknown", [{1: 0.5}], None)  # its host is h
    RunRecord.create(runs.root, "e-new", {})
    going = run(runs.root, "f-running")
    attempt = going.begin_attempt(["driver"], {}, {}, "steps: 4\n")
    run(runs.root, "g-trial", rehearsal="train")
    (runs.root / "broken").mkdir()
    (runs.root / "broken/run.json").write_text("{")
    done = runs("list")
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()[1:]}
    assert {name: row[1] for name, row in rows.items()} == {
        name: name[2:] for name in ("a-done", "b-failed", "c-killed", "d-unknown", "e-new", "f-running")
    }
    assert rows["a-done"][2:6] == ["quickstart", "a" * 12, "2/4", "0.200"] and rows["a-done"][7] == "2"
    assert "1 rehearsal left out" in done.stderr and f"Unreadable: {runs.root}/broken/run.json" in done.stderr
    assert "rehearsal train" in runs("list", "--rehearsals").stdout
    found = runs.json("list")
    assert found["rehearsals_left_out"] == 1 and found["unreadable"] == [str(runs.root / "broken/run.json")]
    assert [row["state"] for row in found["runs"]] == [row[1] for row in rows.values()]
    assert found["runs"][0]["reward"] == 0.2 and found["runs"][0]["nodes"] == 2
    attempt.end("done", 0)


def test_damaged_records_hide_no_other_run(runs: Runs) -> None:
    """As another user's, or on a failing disk; the name is too long for any file system, for root as well."""
    for name in ("fine", "half", "locked"):
        run(runs.root, name)
    for file in ("half/attempts/1/metrics.jsonl", "locked/run.json"):
        (runs.root / file).unlink()
        (runs.root / file).symlink_to("x" * 300)
    done = runs("list")
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["fine"]
    for file in ("half/attempts/1/metrics.jsonl", "locked/run.json"):
        assert f"Unreadable: {runs.root}/{file}: File name too long" in done.stderr
    assert len(runs.json("list")["unreadable"]) == 2
    assert "metrics.jsonl" in runs("show", "half", code=1).stderr
    for name in ("fine", "half"):
        shutil.rmtree(runs.root / name)
    assert "No runs in" not in runs("list").stderr


def test_an_empty_folder(runs: Runs) -> None:
    assert "No runs in" in runs("list").stderr
    assert runs.json("list")["runs"] == []


# -- show ----------------------------------------------------------------------------------------------


def test_a_resumed_run_has_one_curve_and_its_alarms_their_steps(runs: Runs) -> None:
    record = run(
        runs.root,
        "demo",
        [{1: 0.1, 2: 0.2, 3: 0.9}, {3: 0.3, 4: 0.4}],
        drift={"reason": "mine"},
    )
    alarm = {
        "time": 1002.5,
        "kind": "nan",
        "message": "loss is NaN",
        "cause": "c",
        "place": "p",
        "hint": "Stop the run.",
        "fatal": True,
    }
    later = {**alarm, "time": 2003.5}
    (record.folder / "attempts/1/alarms.jsonl").write_text(json.dumps(alarm) + "\n{cut off")
    (record.folder / "attempts/2/alarms.jsonl").write_text(f"{json.dumps(later)}\n" * 3)
    write_samples(record, 4, [("q", "a", 1.0)])
    checkpoint(record, 4)
    text = runs("show", "demo").stdout
    assert "demo: done, 4/4 steps, reward 0.400, goal 0.8" in text and "UNPROVEN: mine" in text
    assert "step 2, attempt 1, FATAL nan: loss is NaN" in text and text.isascii()
    assert text.count("FATAL nan: loss is NaN") == 1 and "    next:  Stop the run.\n" in text
    assert "    often: 4 times, the last at step 3, attempt 2, FATAL nan\n" in text
    assert re.search(r"^  1  stopped  steps 1-3 .* on n1, n2$", text, re.M)
    assert "gen 1.5" in text and "100 per device, 200 per card" in text
    found = runs.json("show", "demo")
    assert found["curve"] == [[1, 0.1], [2, 0.2], [3, 0.3], [4, 0.4]]
    assert [(one["step"], one["count"]) for one in found["alarms"]] == [(2, 1), (3, 1), (3, 2), (3, 3)]
    assert any(line.startswith("npu-rl report demo ") for line in found["next"])
    assert found["tokens_per_second"]["card"] == 200
    assert any(line.startswith("npu-rl weights export demo demo-hf ") for line in found["next"])
    assert found["state"] == "done"


@pytest.mark.parametrize(
    ("outcome", "overrides", "resumes"),
    [
        ("stopped", ["steps=4", "name=mine"], "npu-rl train quickstart steps=4 name=mine --resume"),
        (None, [], "npu-rl train quickstart name=mine --resume"),
        ("failed", ["optimizer.lr=1 e"], "npu-rl train quickstart 'optimizer.lr=1 e' name=mine --resume"),
    ],
)
def test_each_next_command_is_one(
    runs: Runs, outcome: str | None, overrides: list[str], resumes: str
) -> None:
    here = os.uname().nodename
    record = run(runs.root, "mine", [{1: 0.1}], outcome, overrides=overrides, recipe="demo", host=here)
    checkpoint(record, 1)
    write_samples(record, 1, [("q", "a", None)])
    lines = runs.json("show", "mine")["next"]
    assert any(line.startswith(f"{resumes} ") for line in lines), lines
    by_folder = runs.json("show", str(record.folder), "-w", "my ws")["next"]
    assert [line for line in by_folder if str(record.folder) in line and "--workspace 'my ws'" in line]
    resumes = f"NPU_RL_RUNS={runs.root} {resumes} --workspace /home/you/ws "
    assert any(line.startswith(resumes) for line in by_folder), by_folder
    for line in [*lines, *by_folder]:
        if "npu-rl " in line:
            given = shlex.split(line.removeprefix(f"NPU_RL_RUNS={runs.root} "), comments=True)[1:]
            assert run_here([*given, "--help"], runs.env, runs.folder).returncode == 0, line
        else:
            assert Path(shlex.split(line, comments=True)[-1]).is_file()


def test_a_run_in_its_workspaces_folder_of_runs_is_resumed_there(runs: Runs) -> None:
    record = run(runs.root, "mine", [{1: 0.1}], "stopped", recipe="mine", workspace=str(runs.folder))
    checkpoint(record, 1)
    (line,) = (one for one in runs.json("show", str(record.folder))["next"] if "--resume" in one)
    assert line.startswith(f"npu-rl train quickstart --resume --workspace {runs.folder}   # ")


@pytest.mark.parametrize(
    ("overrides", "name", "words"),
    [
        (["steps=4", "name=mine"], "moved", "steps=4 name=moved"),
        (["name=mine", "steps=4"], "demo", "steps=4"),
        ([], "moved", "name=moved"),
    ],
)
def test_a_renamed_run_is_resumed_by_the_name_that_it_has(
    runs: Runs, overrides: list[str], name: str, words: str
) -> None:
    checkpoint(run(runs.root, "mine", [{1: 0.1}], "stopped", overrides=overrides, recipe="demo"), 1)
    (runs.root / "mine").rename(runs.root / name)
    (line,) = (one for one in runs.json("show", name)["next"] if "--resume" in one)
    assert line.startswith(f"npu-rl train quickstart {words} --resume ")


def test_a_failure_is_explained_from_its_log(runs: Runs) -> None:
    record = run(runs.root, "demo", [{1: 0.1}], "failed")
    log = record.folder / "attempts/1/driver.log"
    log.write_text(
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: batch sizes differ\n'
    )
    assert "ValueError: batch sizes differ" in runs("show", "demo").stdout
    assert runs.json("show", "demo")["failure"]["where"] == f"{log}:3"
    refused = {"what": "The nodes differ", "where": "n2", "why": "torch 2.1", "hint": "Install it."}
    (record.folder / "attempts/1/nodes.json").write_text(json.dumps({"nodes": [], "refused": refused}))
    assert "why:   The nodes differ. torch 2.1" in runs("show", "demo").stdout


def test_an_error_before_the_trainer_started_is_in_the_record(runs: Runs) -> None:
    record = RunRecord.create(runs.root, "demo", {})
    attempt = record.begin_attempt(["driver"], {}, {}, "steps: 4\n", secrets=Secrets(("hunter2-hunter2",)))
    why = "hunter2-hunter2 and https://me:s3cr3t-word@host/x"
    attempt.close("failed", None, 3, error=HostError("No model", where="python", why=why, hint="Wait."))
    failure = runs.json("show", "demo")["failure"]
    assert (failure["where"], failure["hint"]) == ("python", "Wait.")
    assert failure["cause"].startswith("No model. ***") and "s3cr3t-word" not in failure["cause"]


@pytest.mark.parametrize(
    ("log", "end", "cause"),
    [
        ("reading\nvendor: no luck today\n", {"driver_code": 3}, "The trainer ended with exit status 3"),
        ("", {"driver_code": 3}, "The trainer ended with exit status 3, and logged nothing."),
        ("made it\n", {"driver_code": None}, "The trainer was not started"),
    ],
)
def test_a_failure_that_nothing_explains_has_the_end_of_its_log(
    runs: Runs, log: str, end: dict[str, object], cause: str
) -> None:
    record = run(runs.root, "demo", [{1: 0.1}], "failed")
    place = record.folder / "attempts/1"
    (place / "driver.log").write_text(log)
    (place / "end.json").write_text(json.dumps({"outcome": "failed", "code": 1, "ended": now(), **end}))
    failure = runs.json("show", "demo")["failure"]
    assert failure["cause"].startswith(cause) and failure["where"] == str(place / "driver.log")
    assert failure["cause"].splitlines()[1:] == ([] if not log else log.splitlines())
    if "vendor" in log:
        assert "vendor: no luck today" in runs("show", "demo").stdout


# -- attempts ------------------------------------------------------------------------------------------


def test_each_attempt_says_what_it_ran(runs: Runs) -> None:
    """The first trained with another rate, and the goal is the last one's."""
    record = run(
        runs.root, "demo", [{1: 0.1, 2: 0.2}], "stopped", lr="2e-3", overrides=["checkpoint.every=2"]
    )
    ran = {"overrides": ["checkpoint.every=2", "steps=3", "optimizer.lr=9e-3"], "steps": 3, "goal": 0.5}
    recipe = RECIPE.format(steps=3, lr="9e-3")
    details = {"recipe_files": {"bundled:quickstart.yaml": "0" * 64}, **ran}
    attempt = record.begin_attempt(["driver"], {}, {}, recipe, details=details)
    with MetricsWriter(attempt.metrics) as writer:
        writer.write(2, {"critic/score/mean": 0.5, "timing_s/step": 1.0})
    attempt.end("stopped", 130)
    checkpoint(record, 2)
    run(runs.root, "other", lr="2e-3")
    shown = runs.json("show", "demo")
    assert [one["overrides"] for one in shown["attempts"]] == [["checkpoint.every=2"], ran["overrides"]]
    assert (shown["goal"], shown["total_steps"]) == (0.5, 3)
    resumes = "npu-rl train quickstart checkpoint.every=2 steps=3 optimizer.lr=9e-3 --resume "
    assert any(line.startswith(resumes) for line in shown["next"]), shown["next"]
    differing = {
        one["name"]: one["b"] for one in runs.json("compare", "other", "demo")["differences"]["recipe"]
    }
    assert differing["optimizer.lr"] == "2e-3 in steps 1-1, then 9e-3 in steps 2-2"


# -- compare -------------------------------------------------------------------------------------------


def test_what_differs_between_two_runs(runs: Runs) -> None:
    lock, other = (
        (data_root() / f"manifests/{name}.lock.json").read_bytes()
        for name in ("quickstart", "deepseek-r1-zero")
    )
    packages = {"path": "/usr/bin/python3", "version": "3.11.7", "packages": {"ray": "2.43.0"}}
    run(runs.root, "one", lock=lock, environment={"NPU_RL_RUN": "x" * 32, "PATH": "/bin"})
    run(runs.root, "two", [{1: 0.3, 2: 0.1}], lr="1e-6", lock=other, tree="c" * 40, interpreter=packages)
    text = runs("compare", "one", "two").stdout
    assert text.isascii() and "A  one: done, 2/4 steps" in text and "A and B as above" in text
    plot = text.partition("A and B as above")[0].partition("\n\n")[2]
    assert set("AB") <= set(plot)
    found = runs.json("compare", "one", str(runs.root / "two"))
    differing = {
        part: {one["name"]: (one["a"], one["b"]) for one in rows}
        for part, rows in found["differences"].items()
    }
    assert differing["recipe"] == {"optimizer.lr": ("3e-3", "1e-6")}
    assert differing["packages"] == {"ray": ("2.42.1", "2.43.0")}
    assert differing["environment"] == {"PATH": ("/bin", None)}
    assert differing["run"] == {"tree": ("a" * 40, "c" * 40)}
    assert "verl: pin" in text and "A  verl==0.5.0" in text and "patch " in text
    assert "0001-hf-rollout-repeats-once" in json.dumps(found["stack"])
    assert found["not_compared"] == []


def test_parts_of_an_environment_are_compared_by_name(runs: Runs) -> None:
    for name, code in (("one", "a" * 40), ("two", "b" * 40)):
        folder = run(runs.root, name).folder
        parts = {"tree": {"id": code[:12], "value": {"code": code}}, "built": {"id": "0", "value": {}}}
        facts = {"hostname": "h", "environment": {"id": f"env:{code}", "parts": parts}}
        (folder / "attempts/1/host.json").write_text(json.dumps(facts))
    found = runs.json("compare", "one", "two")["differences"]["host"]
    assert found == [{"name": "environment.tree.code", "a": "a" * 40, "b": "b" * 40}]


def test_the_same_run_does_not_differ(runs: Runs) -> None:
    run(runs.root, "one", lr="3e-3")
    run(runs.root, "two", lr="0.003")
    (runs.root / "one/lock.json").write_text("{}")
    found = runs.json("compare", "one", "two")
    assert not any(found["differences"].values())
    assert found["not_compared"][0].startswith("stack: ")  # neither has a lock
