"""Stacks of a run's processes: read as faulthandler and py-spy print them, grouped, the odd ranks first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.training.monitor.hang_alarm import StackReport, hang_alarm, lost_node_alarm, report_of
from npu_rl.training.monitor.phase_clock import PhaseWait
from npu_rl.training.monitor.stack_text import Frame, parse_stacks

FAULTHANDLER = """\
Thread 0x00007f10f0d3d6c0 (most recent call first):
  File "/code/side work.py", line 4 in w
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f10f188bb80 (most recent call first):
  File "/code/verl/a.py", line 6 in inner
  File "/code/verl/a.py", line 7 in <module>
"""
PY_SPY = """\
Process 30914: ray::WorkerDict
Python v3.11.7 (/usr/bin/python3.11)

Thread 30914 (idle): "MainThread"
    inner (/code/verl/a.py:6)
    <module> (/code/verl/a.py:7)
Thread 30916 (active+gil): "side"
    w (/code/side work.py:4)
    Thread.run (/usr/lib/python3.11/threading.py:982)
"""
IN_COLLECTIVE = [
    ("/x/site-packages/torch/distributed/distributed_c10d.py", 2806, "all_reduce"),
    ("/code/verl/worker.py", 80, "update"),
]
IN_LOOP = [("/code/verl/worker.py", 31, "pack"), ("/code/verl/worker.py", 82, "update")]
IDLE = [
    ("/x/site-packages/ray/_private/worker.py", 892, "main_loop"),
    ("/x/site-packages/ray/_private/workers/default_worker.py", 289, "<module>"),
]
GETTING = [
    ("/x/site-packages/ray/_private/worker.py", 923, "get_objects"),
    ("/code/verl/trainer.py", 900, "fit"),
]
SCORING = [("/usr/lib/python3.11/socket.py", 706, "readinto"), ("/code/reward.py", 14, "compute_score")]


def stacks(frames: list[tuple[str, int, str]]) -> str:
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in frames]
    return "\n".join(["Current thread 0x1 (most recent call first):", *lines])


def rank(number: int, frames: list[tuple[str, int, str]], world: int = 4, **more: Any) -> dict[str, Any]:
    return {
        **{"pid": 100 + number, "parent": 1, "name": "ray::WorkerDict", "state": "S", "python": True},
        **{
            "rank": str(number),
            "world": str(world),
            "group": None,
            "how": "faulthandler",
            "text": stacks(frames),
        },
        **more,
    }


def trainer(frames: list[tuple[str, int, str]]) -> dict[str, Any]:
    return {"pid": 50, "parent": 1, "name": "ray::TaskRunner.run", "state": "S", "text": stacks(frames)}


def report(*rows: dict[str, Any], **more: Any) -> StackReport:
    return report_of({"nodes": [{"host": "node3", "ip": "10.99.7.3", "processes": list(rows)}], **more})


def test_both_tools_show_the_same_stacks() -> None:
    main = (Frame("/code/verl/a.py", 6, "inner"), Frame("/code/verl/a.py", 7, "<module>"))
    for text, run in ((FAULTHANDLER, "run"), (PY_SPY, "Thread.run")):
        side = (Frame("/code/side work.py", 4, "w"), Frame("/usr/lib/python3.11/threading.py", 982, run))
        assert parse_stacks(text) == [main, side]


@given(
    st.text()
    | st.lists(st.sampled_from([*FAULTHANDLER.splitlines(), *PY_SPY.splitlines(), "x"])).map("\n".join)
)
def test_any_text_is_read(text: str) -> None:
    for stack in parse_stacks(text):
        assert stack and all(frame.line >= 0 for frame in stack)


def test_the_one_that_is_not_where_the_others_are_comes_first() -> None:
    lines = report(
        *(rank(n, IN_LOOP if n == 2 else IN_COLLECTIVE) for n in range(4)), trainer(GETTING)
    ).lines()
    assert lines[0] == "rank 2 (node3, pid 102): in verl/worker.py:31 in pack"
    assert (
        lines[1]
        == "3 ranks: 0-1, 3: in verl/worker.py:80 in update (in distributed/distributed_c10d.py:2806 in all_reduce)"
    )
    assert lines[2].startswith("ray::TaskRunner.run (node3, pid 50): waits in")


def test_of_two_ranks_the_one_outside_of_the_collective_comes_first() -> None:
    for frames, what in (
        (IN_LOOP, "in verl/worker.py:31"),
        (IDLE, "waits for its next task"),
    ):
        lines = report(rank(0, IN_COLLECTIVE, 2), rank(1, frames, 2)).lines()
        assert lines[0].startswith(f"rank 1 (node3, pid 101): {what}")


def test_a_stopped_rank_comes_first_with_its_line_where_it_is_known() -> None:
    unknown = rank(1, [], state="T", text="", how="py-spy is not installed")
    lines = report(rank(0, IN_LOOP), unknown, rank(2, IN_COLLECTIVE), rank(3, IN_COLLECTIVE)).lines()
    assert lines[0] == "rank 1 (node3, pid 101): stopped (by a signal); py-spy is not installed"
    known = rank(1, IN_LOOP, state="T")
    assert (
        report(rank(0, IN_LOOP), known)
        .lines()[1]
        .endswith("stopped (by a signal) in verl/worker.py:31 in pack")
    )


def test_where_all_ranks_are_idle_the_trainers_own_function_comes_first() -> None:
    lines = report(*(rank(n, IDLE) for n in range(4)), trainer(SCORING)).lines()
    place = "code/reward.py:14 in compute_score (in python3.11/socket.py:706 in readinto)"
    assert lines[0] == f"ray::TaskRunner.run (node3, pid 50): in {place}"
    assert lines[1].startswith("4 ranks: 0-3: waits for its next task")


def test_a_rank_that_is_gone_and_a_child_that_has_ended_are_named() -> None:
    lines = report(*(rank(n, IN_COLLECTIVE) for n in (0, 1, 3))).lines()
    assert lines[0] == "rank 2 of 4: gone, no node has its process"
    child = {"pid": 300, "parent": 101, "name": "VLLM::EngineCore", "state": "Z", "rank": None, "text": ""}
    lines = report(*(rank(n, IN_COLLECTIVE) for n in range(4)), child).lines()
    assert lines[0] == "a child of rank 1 (node3, pid 300): has ended, and its parent has not noticed"


def test_rays_own_processes_and_idle_children_are_left_out() -> None:
    own = [
        {"pid": 9, "parent": 1, "name": name, "state": "S", "text": stacks(SCORING)}
        for name in ("/p/ray/dashboard/agent.py", "/p/ray/_private/log_monitor.py", "ray::IDLE", "raylet")
    ]
    child = rank(0, [("/usr/lib/python3.11/selectors.py", 400, "select")], pid=500, parent=100)
    assert len(report(rank(0, IN_LOOP, 1), child, *own).groups) == 1


def test_a_lost_node_and_one_that_does_not_answer_come_before_all() -> None:
    lost = {"host": "node2", "ip": "10.99.7.2", "reason": ""}
    found = report(rank(0, IN_LOOP), lost=[lost], silent=[{"host": "node4", "ip": "10.99.7.4"}])
    assert found.lines()[:2] == [
        "node2 (10.99.7.2) has left the Ray cluster",
        "node4 (10.99.7.4) does not answer",
    ]
    wait = PhaseWait("gen", 130.0, 120.0, 30.0)
    alarm = hang_alarm(wait, 5, found, Path("stacks/1.txt"), run="demo-2", fatal=False)
    assert alarm.message == "gen after step 5 takes 2:10 (limit 2:00; at most 0:30 so far)"
    assert alarm.cause.startswith("node2 (10.99.7.2) has left the Ray cluster\n")
    assert "leave it out" in alarm.hint and "`npu-rl runs stop demo-2`" in alarm.hint
    assert lost_node_alarm("10.99.7.2", 5, Path("driver.log"), run="demo-2").hint == alarm.hint


def test_without_stacks_the_alarm_comes_all_the_same() -> None:
    wait = PhaseWait("building the workers", 1900.0, 1800.0, None)
    alarm = hang_alarm(
        *(wait, None, StackReport(error="the nodes did not answer"), Path("driver.log")),
        run="demo",
        fatal=True,
    )
    assert alarm.message == "building the workers takes 31:40 (limit 30:00; the first of its name)"
    assert "No stacks: the nodes did not answer" in alarm.cause and alarm.fatal


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["nodes", "processes", "rank", "world", "pid", "parent", "text", "lost", "silent", "state"]),
        inner,
    ),
    max_leaves=25,
)  # fmt: skip


@given(JSON)
def test_whatever_a_node_reports_is_read(found: Any) -> None:
    if isinstance(found, dict):
        report_of(found).text()


@pytest.mark.parametrize("count", [1000])
def test_many_ranks_make_a_short_report(count: int) -> None:
    rows = [rank(n, IN_LOOP if n == 700 else IN_COLLECTIVE, count) for n in range(count)]
    found = report(*rows)
    assert found.lines()[0].startswith("rank 700 (")
    assert found.lines()[1].startswith("999 ranks: 0-699, 701-999: ")
