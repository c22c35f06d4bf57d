"""`runs list`, `show` and `compare`: real records, whatever state they are in, and what is printed of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import typer

from npu_rl.cli.app import app
from npu_rl.common.bundled import data_root
from npu_rl.common.errors import HostError
from npu_rl.common.masking import Secrets
from npu_rl.training.browse.attempt_changes import trained_recipe
from npu_rl.training.monitor.alarm import Alarm
from npu_rl.training.monitor.metrics import MetricsWriter
from npu_rl.training.record.locate_run import locate_run
from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.record.run_errors import NoSuchRun
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
        if words[0] in ("show", "compare"):
            assert documented(words[0], JSON_PAGE) == found.keys()
        return found


def check_command(line: str) -> None:
    """Fail unless a line runs a command of npu-rl with arguments that it takes."""
    words = shlex.split(line, comments=True)
    words = words[words.index("npu-rl") + 1 :]
    command, context = typer.main.get_command(app), None
    while hasattr(command, "get_command"):
        context = command.make_context("npu-rl", [], parent=context, resilient_parsing=True)
        command = command.get_command(context, words.pop(0))
    command.make_context("npu-rl", words, parent=context)


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


def test_a_name_is_that_of_the_folder_of_runs_also_beside_a_record_of_that_name(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People stand in another workspace's folder of runs, and each has a quickstart."""
    there = runs.folder / "other/runs"
    for root, name in ((runs.root, "demo"), (there, "demo"), (there, "only")):
        run(root, name)
    monkeypatch.chdir(there)
    assert locate_run("demo", runs.root) == (runs.root, "demo")
    assert locate_run("./demo", runs.root) == (there, "demo")
    assert locate_run("only", None) == (there, "only")
    with pytest.raises(NoSuchRun, match="Unknown run only") as refused:
        locate_run("only", runs.root)
    assert "./only" in str(refused.value)


# -- show ----------------------------------------------------------------------------------------------


def test_a_resumed_run_has_one_curve_and_its_alarms_their_steps(runs: Runs) -> None:
    record = run(
        runs.root,
        "demo",
        [{1: 0.1, 2: 0.2, 3: 0.9}, {3: 0.3, 4: 0.4}],
        drift={"reason": "mine"},
    )
    alarm = asdict(Alarm("nan", "loss is NaN", "c", "p", fatal=True, hint="Stop the run.", step=2))
    first, second = (record.folder / f"attempts/{number}/alarms.jsonl" for number in (1, 2))
    first.write_text(json.dumps({"time": 1002.5, **alarm}) + "\n{cut off")
    later = [json.dumps({"time": 2003.5, **alarm, "step": 3, "count": count}) for count in (1, 2, 3)]
    second.write_text("\n".join(later) + "\n")
    checkpoint(record, 4)
    text = runs("show", "demo").stdout
    assert "demo: done, 4/4 steps, reward 0.400, goal 0.8" in text and "UNPROVEN: mine" in text
    assert "step 2, attempt 1, FATAL nan: loss is NaN" in text and text.isascii()
    headings = [
        line.partition(" (")[0] for line in text.split("goal 0.8", 2)[2].splitlines() if line[:1].isalpha()
    ]
    assert headings == ["phases", "alarms", "attempts", "provenance", "next"]
    assert text.count("FATAL nan: loss is NaN") == 1 and "    next:  Stop the run.\n" in text
    assert "    often: 4 times, the last at step 3, attempt 2, FATAL nan\n" in text
    assert re.search(r"^  1  stopped  steps 1-3, from 3 on replaced .* on n1, n2$", text, re.M)
    assert "gen 1.5" in text and "100 tok/s/device" in text and "200 per card" in text
    found = runs.json("show", "demo")
    assert found["curve"] == [[1, 0.1], [2, 0.2], [3, 0.3], [4, 0.4]]
    assert [(one["step"], one["count"]) for one in found["alarms"]] == [(2, 1), (3, 1), (3, 2), (3, 3)]
    assert any(line.startswith("npu-rl report demo ") for line in found["next"])
    assert found["tokens_per_second"]["card"] == 200
    assert any(line.startswith("npu-rl weights export demo demo-hf ") for line in found["next"])
    assert found["state"] == "done"


@pytest.mark.parametrize(
    ("outcome", "overrides", "name", "words"),
    [
        ("stopped", ["name=mine", "steps=4", "env.A_TOKEN=***"], "mine", "steps=4 name=mine"),
        (None, [], "mine", "name=mine"),
        ("failed", ["optimizer.lr=1 e"], "mine", "'optimizer.lr=1 e' name=mine"),
        ("stopped", ["steps=4", "name=mine"], "moved", "steps=4 name=moved"),
    ],
)
def test_each_next_command_is_one(
    runs: Runs, outcome: str | None, overrides: list[str], name: str, words: str
) -> None:
    here = os.uname().nodename
    record = run(runs.root, "mine", [{1: 0.1}], outcome, overrides=overrides, recipe="demo", host=here)
    checkpoint(record, 1)
    folder = record.folder.rename(runs.root / name)
    lines = runs.json("show", name)["next"]
    resumes = f"npu-rl train quickstart {words} --resume --workspace /home/you/ws "
    assert any(line.startswith(resumes) for line in lines), lines
    by_folder = runs.json("show", str(folder), "-w", "my ws")["next"]
    assert [line for line in by_folder if str(folder) in line and "--workspace 'my ws'" in line]
    del runs.env["NPU_RL_RUNS"]
    elsewhere = runs.json("show", str(folder))["next"]
    assert any(line.startswith(f"NPU_RL_RUNS={runs.root} {resumes}") for line in elsewhere), elsewhere
    for line in [*lines, *by_folder, *elsewhere]:
        if "npu-rl " in line:
            check_command(line)
        else:
            assert Path(shlex.split(line, comments=True)[-1]).is_file()


def test_a_run_killed_before_its_first_checkpoint_is_begun_again(runs: Runs) -> None:
    words = ["steps=4", "name=mine"]
    run(runs.root, "mine", [{1: 0.1}], None, overrides=words, host=os.uname().nodename)
    shown = runs("show", "mine").stdout
    again = "npu-rl train quickstart steps=4 --workspace /home/you/ws   # begin again: it has no checkpoint"
    assert again in shown
    check_command(again)
    assert re.search(r"^  1  killed  steps 1-1  \S+  [0-9]+:[0-9]{2}  on n1, n2$", shown, re.M), shown


def test_a_failure_is_the_one_that_was_recorded_with_secrets_masked(runs: Runs) -> None:
    record = RunRecord.create(runs.root, "demo", {})
    attempt = record.begin_attempt(["driver"], {}, {}, "steps: 4\n", secrets=Secrets(("hunter2-hunter2",)))
    why = "hunter2-hunter2 and https://me:s3cr3t-word@host/x"
    attempt.close("failed", None, 3, error=HostError("No model", where="python", why=why, hint="Wait."))
    failure = runs.json("show", "demo")["failure"]
    assert (failure["where"], failure["hint"]) == ("python", "Wait.")
    assert failure["cause"].startswith("No model. ***") and "s3cr3t-word" not in failure["cause"]


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
    shown = runs.json("show", "demo")
    assert [one["overrides"] for one in shown["attempts"]] == [["checkpoint.every=2"], ran["overrides"]]
    assert (shown["goal"], shown["total_steps"]) == (0.5, 3)
    resumes = "npu-rl train quickstart checkpoint.every=2 steps=3 optimizer.lr=9e-3 --resume "
    assert any(line.startswith(resumes) for line in shown["next"]), shown["next"]
    assert shown["attempts"][1]["changed"] == [
        {"name": "optimizer.lr", "a": "2e-3", "b": "9e-3"},
        {"name": "steps", "a": "4", "b": "3"},
    ]
    changes = trained_recipe(recorded_run(runs.root, "demo"))
    assert changes["optimizer.lr"] == "2e-3 to step 1, 9e-3 to step 2"


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
    differing = {one["name"]: (one["a"], one["b"]) for one in found["differences"]}
    assert {name: values for name, values in differing.items() if ": " not in name} == {
        "recipe.optimizer.lr": ("3e-3", "1e-6"),
        "interpreter.packages.ray": ("2.42.1", "2.43.0"),
        "variables.PATH": ("/bin", None),
        "tree": ("a" * 40, "c" * 40),
    }
    assert differing["verl: pin"][0] == "verl==0.5.0" and "  A  verl==0.5.0\n" in text
    assert "0001-hf-rollout-repeats-once" in json.dumps(found["differences"])
    assert found["not_compared"] is None


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
