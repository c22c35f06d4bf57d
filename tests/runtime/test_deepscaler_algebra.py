"""The whole reward, with its processes: real ones, real answers, nothing stood in for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from npu_rl.runtime.deepscaler import compute_score, compute_scores, pool, scores
from tests.runtime.deepscaler_pairs import DIFFERENT, DIFFERENT_BY_ALGEBRA, HEDGED, SAME, SAME_BY_ALGEBRA
from tests.support import ROOT

pytest.importorskip("math_verify")

HOSTILE = [
    "9^{9^{9^{9}}}", "9^{9^9}", "(10^{10})!", "99999! - 99998!", r"\binom{10^9}{5\cdot 10^8}", r"\sum_{k=1}^{10^9} k!",
    r"\int_0^1 \sin(\sin(\sin(x^x))) dx", r"\prod_{i=1}^{99999} \frac{i}{i+1}", "(a+b+c+d+e)^{60}", "(x+1)^{99999}",
    r"\lim_{x\to 0} \frac{\sin(x^{x^{x}})}{x^{99}}", r"\frac{1}{" * 22 + "x" + "}" * 22, "1," * 499 + "1", "x" * 999,
    r"\sqrt" * 300, "[(" * 20, "{" * 500 + "x" + "}" * 500, r"\sqrt{" * 23 + "2" + "}" * 23,
    "+" * 900, "(x" * 24 + ")" * 24,
    "a^" * 300, r"\frac" * 190, "\x00\udc80 \U0010ffff", r"\def\x{\x\x}\x", "__import__('os').abort()",
]  # fmt: skip


def boxed(text: str) -> str:
    return rf"<think>well</think><answer>So it is \boxed{{{text}}}.</answer>"


def alive(pid: int) -> bool:
    """Whether the process runs: neither gone nor a zombie."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def children(pid: int) -> set[int]:
    """The process's children, zombies too."""
    with suppress(psutil.NoSuchProcess):
        return {child.pid for child in psutil.Process(pid).children()}
    return set()


def server() -> int:
    """The process that scores, which one answer that needs algebra starts."""
    assert compute_score("deepscaler", boxed(r"2\sqrt2"), r"\sqrt8") == 1.0
    assert pool._started
    return pool._started.process.pid


def until(condition: Any, what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"waited a minute: {what}"
        time.sleep(0.01)


@pytest.fixture(autouse=True, scope="module")
def _two_workers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPU_RL_DEEPSCALER_WORKERS", "2")
        pool.close()
        yield
        pool.close()


PAIRS = dict.fromkeys([*SAME, *SAME_BY_ALGEBRA], 1.0) | dict.fromkeys(
    [*DIFFERENT, *DIFFERENT_BY_ALGEBRA, *HEDGED], 0.0
)


@pytest.mark.second
def test_pairs_by_algebra() -> None:
    responses, rights = [boxed(given) for _, given in PAIRS], [right for right, _ in PAIRS]
    found = compute_scores(["deepscaler"] * len(PAIRS), responses, rights, limit_s=10)
    assert [pair for pair, score in zip(PAIRS, found, strict=True) if score != PAIRS[pair]] == []


@pytest.mark.second
def test_hostile_answers_cost_their_limit_and_nobody_else() -> None:
    """Each stands among good ones, in a batch; nothing is equal that is not, and all good ones are."""
    good = SAME_BY_ALGEBRA[:4]
    texts, rights = [], []
    for number, hostile in enumerate(HOSTILE):
        right, given = good[number % len(good)]
        texts += [boxed(hostile), boxed(given)]
        rights += [r"\sqrt{17}+x^2", right]
    found = compute_scores(["deepscaler"] * len(texts), texts, rights, details=True, limit_s=0.2)
    assert [part["score"] for part in found[::2]] == [0.0] * len(HOSTILE)
    late = {hostile for hostile, part in zip(HOSTILE, found[::2], strict=True) if part["limit"]}
    assert "9^{9^9}" in late
    assert [part["score"] for part in found[1::2]] == [1.0] * len(HOSTILE)
    assert len(children(server())) <= 2


def test_the_limit_is_cpu_time_and_the_kernels() -> None:
    """A power of a power is computed in C, where no Python signal handler would run."""
    began = time.monotonic()
    found = compute_score("deepscaler", boxed("9^{9^9}"), r"\sqrt{17}", details=True, limit_s=0.2)
    assert found == {"score": 0.0, "accuracy": 0.0, "format": 0.0, "limit": 1.0}
    assert time.monotonic() - began < 60


def test_the_format_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    """By verl's names of the arguments (workers/reward_manager/batch.py of 55e3c5b), and by the environment."""
    call: dict[str, Any] = {
        "data_sources": ["deepscaler"] * 3,
        "solution_strs": [boxed("5"), r"\boxed{5}", boxed("6")],
        "ground_truths": ["5"] * 3,
        "extra_infos": [None, {"index": 1}, None],
    }
    assert compute_scores(**call) == [1.0, 1.0, 0.0]
    assert compute_scores(**call, variant="format") == pytest.approx([1.0, 0.67, 0.33])
    monkeypatch.setenv("NPU_RL_DEEPSCALER_VARIANT", "format")
    assert compute_scores(**call) == pytest.approx([1.0, 0.67, 0.33])
    assert compute_scores(**call, variant="accuracy") == [1.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="accuracy, format"):
        compute_scores(**call, variant="acc")


@pytest.mark.parametrize(
    ("given", "right", "score"),
    [
        ("5", 5, 1.0), ("0.5", 0.5, 1.0), ("5", r"\boxed{5}", 1.0), ("5", ["4", "5"], 1.0),
        (r"2\sqrt2", ["4", r"\sqrt8"], 1.0), ("5", ["4", "6"], 0.0), ("5", [], 0.0), ("None", None, 0.0),
    ],
)  # fmt: skip
def test_right_answers_of_any_kind(given: str, right: Any, score: float) -> None:
    assert compute_score("deepscaler", boxed(given), right) == score


def test_calls_that_are_refused() -> None:
    with pytest.raises(ValueError, match="2 responses, but 1"):
        compute_scores(["deepscaler"] * 2, ["a", "b"], ["5"])
    with pytest.raises(ValueError, match="limit_s"):
        compute_score("deepscaler", boxed("5"), "5", limit_s=0)
    sources, answers = ["deepscaler", "openai/gsm8k", "aime", "openai/gsm8k"], [boxed("5")] * 4
    with pytest.raises(ValueError, match=r"data source aime, openai/gsm8k: .*any_source: true"):
        compute_scores(sources, answers, ["5"] * 4)
    assert compute_scores(sources, answers, ["5", "5", "6", "5"], any_source=True) == [1.0, 1.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="and 2 more"):
        compute_scores([f"d{n}" for n in range(7)], [boxed("5")] * 7, ["5"] * 7)


def test_killed_processes_are_replaced_and_closing_leaves_none() -> None:
    first = server()
    os.kill(first, signal.SIGKILL)
    second = server()
    assert second != first and first not in children(os.getpid()), "a zombie is left"
    workers = children(second)
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    until(lambda: not any(alive(worker) for worker in workers), "workers die")
    assert compute_scores(["deepscaler"] * 3, [boxed(r"2\sqrt2")] * 3, [r"\sqrt8"] * 3) == [1.0] * 3
    until(lambda: not workers & children(second), "no zombies")
    everyone = {second, *children(second)}
    pool.close()
    assert not any(alive(pid) for pid in everyone) and second not in children(os.getpid())


def test_without_the_library_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first answer that needs algebra; a score of 0 instead would train on nothing."""
    pool.close()
    monkeypatch.setattr(pool, "LIBRARY", "no_such_library")
    assert compute_score("deepscaler", boxed("5"), "5") == 1.0
    with pytest.raises(ModuleNotFoundError, match="pip install 'math-verify"):
        compute_score("deepscaler", boxed(r"2\sqrt2"), r"\sqrt8")


PARENT = """
import json, os, sys, threading
from npu_rl.runtime.deepscaler import compute_score, pool
assert compute_score("deepscaler", r"\\boxed{2\\sqrt2}", r"\\sqrt8") == 1.0
print(json.dumps([os.getpid(), pool._started.process.pid]), flush=True)
hostile = ("deepscaler", r"\\boxed{9^{9^9}}", r"\\sqrt8")
threading.Thread(target=compute_score, args=hostile, kwargs={"limit_s": 600.0}, daemon=True).start()
sys.stdin.read()
"""


@pytest.mark.second
def test_busy_children_end_with_their_parent(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-B", "-c", PARENT],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NPU_RL_DEEPSCALER_WORKERS": "2"},
    ) as parent:  # fmt: skip
        assert parent.stdout
        own, serving = json.loads(parent.stdout.readline())
        everyone = {serving, *children(serving)}
        assert len(everyone) > 1
        os.kill(own, signal.SIGKILL)
        parent.wait(30)
        until(lambda: not any(alive(pid) for pid in everyone), "children end")


def test_switch_and_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NPU_RL_USAGE", str(tmp_path))
    assert scores("deepscaler")
    assert not scores("openai/gsm8k")
    monkeypatch.setenv("NPU_RL_DEEPSCALER_REWARD", "0")
    assert not scores("deepscaler")
    assert compute_scores(["deepscaler"] * 3, [boxed("5")] * 3, ["5"] * 3) == [1.0] * 3
    (file,) = tmp_path.iterdir()
    assert file.read_text().split() == ["3", "deepscaler-reward"]
