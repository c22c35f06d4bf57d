"""`runs samples`: a model's text is escaped, chosen as asked for, and paged on a terminal only."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.samples import Order, choose_samples, read_samples, sample_steps
from tests.browse.recorded import run, write_samples
from tests.browse.test_runs import Runs, runs
from tests.support import ROOT

__all__ = ["runs"]

HOSTILE = "ok\x1b[2J\x1b]0;t\x07\u202eevil\n--- step 9, reward 1 ---\n\x00</script>\r\ud800"


def test_by_step_best_worst_and_random(runs: Runs) -> None:
    record = run(runs.root, "demo")
    write_samples(record, 1, [("q1", "low", 0.0), ("q2", "none", None)])
    write_samples(record, 10, [("q3", "mid", 0.5), ("q4", "high", 1.0)])
    (record.samples / "validation").mkdir()
    (record.samples / "validation/10.jsonl").write_text(
        '{"input": "v", "output": "w", "score": 1, "acc": true}\n'
    )

    def chosen(*words: str) -> list[str]:
        return [one["response"] for one in runs.json("samples", "demo", *words)["samples"]]

    assert chosen() == ["mid", "high"]
    assert chosen("--step", "1") == ["low", "none"]
    assert chosen("--order", "best", "--count", "3") == ["high", "mid", "low"]
    assert chosen("--order", "worst", "--count", "2") == ["low", "mid"]
    assert chosen("--order", "random", "--count", "2") == chosen("--order", "random", "--count", "2")
    assert sorted(chosen("--order", "random")) == ["high", "low", "mid", "none"]
    assert (
        chosen("--validation") == ["w"]
        and "acc:       True" in runs("samples", "demo", "--validation").stdout
    )
    assert "demo: 1 of 4 samples, best" in runs("samples", "demo", "--order", "best", "--count", "1").stdout
    assert "Steps with samples: 1, 10." in runs("samples", "demo", "--step", "2", code=2).stderr
    assert "Unknown order 'last'" in runs("samples", "demo", "--order", "last", code=2).stderr


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("logging:\n  samples: false\n", "logging.samples=false"),
        ("logging:\n  samples: validation\n", "logging.samples=validation"),
        ("trainer:\n  keys:\n    steps: a.b\n", "not verl's"),
    ],
)
def test_a_run_without_samples_says_why(runs: Runs, recipe: str, said: str) -> None:
    record = run(runs.root, "demo")
    (record.folder / "recipe.yaml").write_text(recipe)
    assert said in runs("samples", "demo", code=1).stderr


def test_a_response_steers_no_terminal_and_passes_for_no_line_of_ours(runs: Runs) -> None:
    record = run(runs.root, "demo")
    write_samples(record, 1, [("q", HOSTILE, 0.5), ("q", "x" * 5_000_000, 0.5)])
    with (record.samples / "1.jsonl").open("ab") as file:
        file.write(
            b'\n{"input": "\xff\xfe", "output": "after"}\n[]\nnull\n{"output": ' + b"[" * 10_000 + b"\n"
        )
    text = runs("samples", "demo").stdout
    assert all(c.isprintable() or c == "\n" for c in text)
    assert [line for line in text.splitlines() if line.startswith("--- step")] == [
        "--- step 1, reward 0.5 ---",
        "--- step 1, reward 0.5 ---",
        "--- step 1, reward none ---",
    ]
    assert "and 4,980,000 more characters" in text and len(text) < 30_000 and "after" in text
    assert "3 lines of the files can't be read" in text
    assert runs.json("samples", "demo")["samples"][0]["response"].startswith("ok\x1b[2J")


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=40), st.fixed_dictionaries({"output": st.text(max_size=9)}, optional={
        "score": st.one_of(st.none(), st.floats(), st.text(max_size=3), st.booleans(), st.just(10**400)),
        "input": st.integers(),
    }).map(lambda data: json.dumps(data).encode())), max_size=12),
    st.sampled_from(["written", "best", "worst", "random"]),
    st.integers(1, 5),
)  # fmt: skip
@pytest.mark.second
def test_whatever_the_lines_are_they_are_samples_or_counted(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], order: Order, count: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "lines"
    folder.mkdir(exist_ok=True)
    (folder / "3.jsonl").write_bytes(b"\n".join(lines))
    files = sample_steps(folder)
    found = choose_samples(files, order, count)
    everything = list(read_samples(folder / "3.jsonl", 3))
    assert found.seen == len(everything) and len(found.samples) == min(count, len(everything))
    text = (folder / "3.jsonl").read_bytes()
    assert found.seen + found.skipped == sum(bool(line.strip()) for line in text.split(b"\n"))
    for one in found.samples:
        assert one.step == 3 and "".join((one.prompt, one.response)).encode("utf-8") is not None
    if order in ("best", "worst") and found.samples:
        ranked = sorted((one.reward for one in everything if one.reward is not None), reverse=order == "best")
        chosen = [one.reward for one in found.samples if one.reward is not None]
        assert chosen == ranked[: len(chosen)]


@pytest.mark.parametrize("pager", ["tee {}", "cat"])
def test_a_terminal_gets_a_pager(runs: Runs, tmp_path: Path, pager: str) -> None:
    write_samples(run(runs.root, "demo"), 1, [("q", HOSTILE, 0.5)])
    paged = tmp_path / "paged"
    ours, theirs = pty.openpty()
    env = {**runs.env, "PAGER": pager.format(paged), "TERM": "xterm", "PYTHONPATH": str(ROOT)}
    words = [
        sys.executable,
        "-E",
        "-c",
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import npu_rl.cli as c; c.main()",
    ]
    process = subprocess.Popen(
        [*words, str(ROOT), "runs", "samples", "demo"], env=env, stdin=theirs, stdout=theirs
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end was closed
            break
        shown += part
        if not part:
            break
    os.close(ours)
    assert process.wait(30) == 0
    assert b"demo: 1 of 1 sample" in shown and b"\x1b" not in shown
    assert paged.exists() == (pager != "cat")
    if paged.exists():
        assert paged.read_bytes() == shown.replace(b"\r\n", b"\n")


# -- of a resumed run --------------------------------------------------------------------------------------


def resumed(runs: Runs) -> RunRecord:
    """A run whose first attempt came to step 6, and was resumed from step 3 to step 5."""
    record = run(runs.root, "demo", [dict.fromkeys(range(1, 7), 0.1), {4: 0.2, 5: 0.3}], "stopped")
    for step in range(1, 7):
        write_samples(record, step, [("q", f"of step {step}", 0.1)])
        os.utime(record.samples / f"{step}.jsonl", (1e9, 1e9))
    return record


def test_samples_of_steps_that_were_cut_off_do_not_come_back_in_a_copy(runs: Runs) -> None:
    record = resumed(runs)
    for step in (4, 5):
        write_samples(record, step, [("q", "again", 0.2)])
    assert sorted(recorded_run(runs.root, "demo").sample_files()) == [1, 2, 3, 4, 5]
    shutil.copytree(record.folder, runs.root / "copy", copy_function=shutil.copy)  # with new times
    assert sorted(recorded_run(runs.root, "copy").sample_files()) == [1, 2, 3, 4, 5]
    assert runs.json("samples", "copy")["samples"][0]["response"] == "again"


def test_samples_of_steps_that_were_done_again_without_samples_are_not_the_runs(runs: Runs) -> None:
    resumed(runs)
    assert sorted(recorded_run(runs.root, "demo").sample_files()) == [1, 2, 3]


def test_the_samples_of_the_step_in_progress_are_the_runs(runs: Runs) -> None:
    record = resumed(runs)
    for step in (4, 5, 6):
        write_samples(record, step, [("q", "again", 0.2)])
    attempt = record.begin_attempt(["driver"], {}, {}, "steps: 9\n")
    assert sorted(recorded_run(runs.root, "demo").sample_files()) == [1, 2, 3, 4, 5, 6]
    attempt.end("stopped", 0)
    assert sorted(recorded_run(runs.root, "demo").sample_files()) == [1, 2, 3, 4, 5]
