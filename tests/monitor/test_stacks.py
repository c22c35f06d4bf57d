"""Stacks of a run's processes: read as faulthandler prints them, grouped, the odd ranks first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.training.monitor.hang_alarm import StackReport, hang_alarm, lost_node_alarm, report_of
from npu_rl.training.monitor.stack_text import Frame, parse_stacks
from npu_rl.training.monitor.step_clock import Wait

FAULTHANDLER = """\
Thread 0x00007f10f0d3d6c0 (most recent call first):
  File "/code/side work.py", line 4 in w
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f10f188bb80 (most recent call first):
  File "/code/verl/a.py", line 6 in inner
  File "/code/verl/a.py", line 7 in <module>
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
WAIT = Wait("step 6", 130.0, 120.0, 30.0)


def process(pid: int, name: str, frames: list[tuple[str, int, str]], **more: Any) -> dict[str, Any]:
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in frames]
    text = "\n".join(["Current thread 0x1 (most recent call first):", *lines]) if frames else ""
    return {"pid": pid, "parent": 1, "name": name, "state": "S", "text": text, **more}


def rank(number: int, frames: list[tuple[str, int, str]], world: int = 4, **more: Any) -> dict[str, Any]:
    ranked = {"rank": str(number), "world": str(world), "group": None}
    return {**process(100 + number, "ray::WorkerDict", frames, **ranked), **more}


def trainer(frames: list[tuple[str, int, str]]) -> dict[str, Any]:
    return process(50, "ray::TaskRunner.run", frames)


def report(*rows: dict[str, Any], **more: Any) -> StackReport:
    nodes = [{"host": "node3", "ip": "10.99.7.3", "processes": list(rows)}]
    return report_of({"nodes": nodes, "silent": [], "lost": [], **more})


def advice(found: StackReport) -> str:
    return hang_alarm(WAIT, 5, found, Path("stacks/1.txt"), run="demo-2", fatal=False).hint


def test_the_stacks_of_faulthandler_have_the_main_thread_first() -> None:
    main = (Frame("/code/verl/a.py", 6, "inner"), Frame("/code/verl/a.py", 7, "<module>"))
    side = (Frame("/code/side work.py", 4, "w"), Frame("/usr/lib/python3.11/threading.py", 982, "run"))
    assert parse_stacks(FAULTHANDLER) == [main, side]


@given(st.text() | st.lists(st.sampled_from([*FAULTHANDLER.splitlines(), "x"])).map("\n".join))
def test_any_text_is_read(text: str) -> None:
    for stack in parse_stacks(text):
        assert stack and all(frame.line >= 0 for frame in stack)


def test_the_one_that_is_not_where_the_others_are_comes_first() -> None:
    ranks = (rank(n, IN_LOOP if n == 2 else IN_COLLECTIVE) for n in range(4))
    lines = report(*ranks, trainer(GETTING)).lines()
    place = "in verl/worker.py:80 in update (in distributed/distributed_c10d.py:2806 in all_reduce)"
    assert lines[:2] == [
        "rank 2 (node3, pid 102): in verl/worker.py:31 in pack",
        f"3 ranks: 0-1, 3: {place}",
    ]
    assert lines[2].startswith("ray::TaskRunner.run (node3, pid 50): waits in")


@pytest.mark.parametrize(
    ("frames", "what"), [(IN_LOOP, "in verl/worker.py:31"), (IDLE, "waits for its next task")]
)
def test_of_two_ranks_the_one_outside_of_the_collective_comes_first(
    frames: list[tuple[str, int, str]], what: str
) -> None:
    lines = report(rank(0, IN_COLLECTIVE, 2), rank(1, frames, 2)).lines()
    assert lines[0].startswith(f"rank 1 (node3, pid 101): {what}")


def test_a_stopped_rank_comes_first() -> None:
    found = report(rank(0, IN_LOOP), rank(1, [], state="T"), rank(2, IN_COLLECTIVE), rank(3, IN_COLLECTIVE))
    assert found.lines()[0] == "rank 1 (node3, pid 101): stopped (by a signal)"
    assert "kill -CONT" in advice(found)


def test_where_all_ranks_are_idle_the_trainers_own_function_comes_first() -> None:
    lines = report(process(9, "sh", []), *(rank(n, IDLE) for n in range(4)), trainer(SCORING)).lines()
    place = "code/reward.py:14 in compute_score (in python3.11/socket.py:706 in readinto)"
    assert lines[0] == f"ray::TaskRunner.run (node3, pid 50): in {place}"
    assert lines[1].startswith("4 ranks: 0-3: waits for its next task")


def test_a_rank_that_is_gone_and_a_child_that_has_ended_are_named() -> None:
    found = report(*(rank(n, IN_COLLECTIVE) for n in (0, 1, 3)))
    assert found.lines()[0] == "rank 2 of 4: gone, no node has its process"
    assert "not restarted" in advice(found)
    child = process(300, "VLLM::EngineCore", [], parent=101, state="Z")
    lines = report(*(rank(n, IN_COLLECTIVE) for n in range(4)), child).lines()
    assert lines[0] == "a child of rank 1 (node3, pid 300): has ended, and its parent has not noticed"


def test_each_rank_is_counted_once() -> None:
    """As verl's are: groups have a prefix, and rank 0's registry and a trainer's child have its variables."""
    group = {"group": "abc"}
    registry = rank(0, IDLE, 2, pid=90, name="ray::WorkerGroupRegisterCenter", **group)
    child = rank(0, IDLE, 2, pid=842, parent=50)
    found = report(registry, child, trainer(GETTING), *(rank(n, IDLE, 2, **group) for n in range(2)))
    (ranks,) = [line for line in found.lines() if "ranks: " in line]
    assert ranks.startswith("2 ranks: 0-1: waits for its next task")


def test_rays_own_processes_and_idle_children_are_left_out() -> None:
    names = ("/p/ray/dashboard/agent.py", "/p/ray/_private/log_monitor.py", "ray::IDLE", "raylet")
    own = [process(9, name, SCORING) for name in names]
    child = rank(0, [("/usr/lib/python3.11/selectors.py", 400, "select")], pid=500, parent=100)
    assert len(report(rank(0, IN_LOOP, 1), child, *own).groups) == 1


def test_a_lost_node_and_one_that_does_not_answer_come_before_all() -> None:
    silent = [{"host": "node4", "ip": "10.99.7.4"}]
    found = report(rank(0, IN_LOOP, 2), silent=silent)
    assert found.lines()[:2] == [
        "node4 (10.99.7.4) does not answer",
        "rank 1 of 2: on a node that does not answer",
    ]
    assert "network" in advice(found) and "not restarted" not in advice(found)
    found = report(rank(0, IN_LOOP), lost=[{"host": "node2", "ip": "10.99.7.2", "reason": ""}], silent=silent)
    assert found.lines()[0] == "node2 (10.99.7.2) has left the Ray cluster"
    assert "leave it out" in advice(found) and "`npu-rl runs stop demo-2`" in advice(found)
    assert lost_node_alarm("10.99.7.2", 5, Path("driver.log"), run="demo-2").hint == advice(found)


def test_the_alarm_names_step_and_limit_with_stacks_and_without() -> None:
    alarm = hang_alarm(WAIT, 5, report(rank(0, IN_LOOP, 1)), Path("1.txt"), run="demo", fatal=False)
    assert alarm.message == "step 6 takes 2:10 (limit 2:00; at most 0:30 so far)"
    assert alarm.cause.startswith("rank 0 (") and "watch.phase_timeout" in alarm.hint
    wait = Wait("building the workers", 1900.0, 1800.0, None)
    error = StackReport(error="the nodes did not answer")
    alarm = hang_alarm(wait, None, error, Path("driver.log"), run="demo", fatal=True)
    assert alarm.message == "building the workers takes 31:40 (limit 30:00)"
    assert "No stacks: the nodes did not answer" in alarm.cause and alarm.fatal


def test_many_ranks_make_a_short_report() -> None:
    found = report(*(rank(n, IN_LOOP if n == 700 else IN_COLLECTIVE, 1000) for n in range(1000)))
    assert found.lines()[0].startswith("rank 700 (")
    assert found.lines()[1].startswith("999 ranks: 0-699, 701-999: ")
