"""The whole reward, with its processes: real ones, real answers, nothing stood in for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def on_path(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def alive(pid: int) -> bool:
    """Whether the process runs: neither gone nor a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def children(pid: int) -> set[int]:
    """The process's children, zombies too."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(words[1]) == pid:
            found.add(int(stat.parent.name))
    return found


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


@pytest.mark.second
def test_equal_by_algebra() -> None:
    pairs = [*SAME, *SAME_BY_ALGEBRA]
    found = compute_scores(
        ["deepscaler"] * len(pairs), [boxed(g) for _, g in pairs], [r for r, _ in pairs], limit_s=10
    )
    assert [pair for pair, score in zip(pairs, found, strict=True) if score != 1.0] == []


def test_not_equal_by_algebra() -> None:
    pairs = [*DIFFERENT, *DIFFERENT_BY_ALGEBRA, *HEDGED]
    found = compute_scores(
        ["deepscaler"] * len(pairs), [boxed(g) for _, g in pairs], [r for r, _ in pairs], limit_s=10
    )
    assert [pair for pair, score in zip(pairs, found, strict=True) if score != 0.0] == []


def test_the_answer_somewhere_is_worth_nothing() -> None:
    for text in (
        "the answer is 5",
        "5 5 5 5",
        r"\boxed{6} 5",
        r"5 \boxed{} 5",
        r"\boxed{5} no, \boxed{6}",
        "",
    ):
        assert compute_score("deepscaler", text, "5") == 0.0
    assert compute_score("deepscaler", r"\boxed{6} no, \boxed{5}", "5") == 1.0


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
    (server,) = [c for c in children(os.getpid()) if pool._started and c == pool._started.process.pid]
    assert len(children(server)) <= 2


def test_the_limit_is_cpu_time_and_the_kernels() -> None:
    """A power of a power is computed in C, where no Python signal handler would run."""
    began = time.monotonic()
    found = compute_score("deepscaler", boxed("9^{9^9}"), r"\sqrt{17}", details=True, limit_s=0.2)
    assert found == {"score": 0.0, "accuracy": 0.0, "format": 0.0, "limit": 1.0}
    assert time.monotonic() - began < 60


def test_a_megabyte_of_hostility() -> None:
    for text in (
        boxed("{" * 500_000 + "}" * 500_000),
        r"\boxed{" * 150_000,
        boxed("9^" * 500_000),
        boxed("x+" * 500_000),
    ):
        assert compute_score("deepscaler", text, "5") == 0.0


def test_the_format_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bare, wrong = boxed("5"), r"\boxed{5}", boxed("6")
    rights = ["5", "5", "5"]
    assert compute_scores(["deepscaler"] * 3, [good, bare, wrong], rights, variant="format") == pytest.approx(
        [1.0, 0.67, 0.33]
    )
    assert compute_scores(["deepscaler"] * 3, [good, bare, wrong], rights) == [1.0, 1.0, 0.0]
    monkeypatch.setenv("NPU_RL_DEEPSCALER_VARIANT", "format")
    assert compute_score("deepscaler", bare, "5") == pytest.approx(0.67)
    assert compute_score("deepscaler", bare, "5", variant="accuracy") == 1.0
    with pytest.raises(ValueError, match="accuracy, format"):
        compute_score("deepscaler", bare, "5", variant="acc")


def test_right_answers_of_any_kind() -> None:
    assert compute_score("deepscaler", boxed("5"), 5) == 1.0
    assert compute_score("deepscaler", boxed("0.5"), 0.5) == 1.0
    assert compute_score("deepscaler", boxed("5"), r"\boxed{5}") == 1.0
    assert compute_score("deepscaler", boxed("5"), ["4", "5"]) == 1.0
    assert compute_score("deepscaler", boxed(r"2\sqrt2"), ["4", r"\sqrt8"]) == 1.0
    assert compute_score("deepscaler", boxed("5"), ["4", "6"]) == 0.0
    assert compute_score("deepscaler", boxed("5"), []) == 0.0
    assert compute_score("deepscaler", boxed("None"), None) == 0.0
    with pytest.raises(ValueError, match="2 responses, but 1"):
        compute_scores(["deepscaler"] * 2, ["a", "b"], ["5"])
    with pytest.raises(ValueError, match="limit_s"):
        compute_score("deepscaler", boxed("5"), "5", limit_s=0)
    assert compute_scores([], [], []) == []


def test_the_batch_managers_call() -> None:
    """verl/workers/reward_manager/batch.py of 55e3c5b: these names, and what the recipe adds."""
    found = compute_scores(
        data_sources=["deepscaler"] * 2,
        solution_strs=[boxed("5"), boxed("6")],
        ground_truths=["5", "5"],
        extra_infos=[None, {"index": 1}],
        variant="format",
    )
    assert found == pytest.approx([1.0, 0.33])


@pytest.mark.second
def test_threads_share_the_workers() -> None:
    found: dict[int, float] = {}

    def ask(number: int) -> None:
        text = boxed(rf"{number}\sqrt{{2}}") if number % 3 else boxed(f"9^{{9^9}}+{number}")
        found[number] = compute_score("deepscaler", text, rf"\sqrt{{{2 * number * number}}}", limit_s=0.2)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(2, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == {number: float(bool(number % 3)) for number in range(2, 20)}


@pytest.mark.second
def test_a_server_that_is_killed_is_replaced() -> None:
    assert compute_score("deepscaler", boxed(r"2\sqrt2"), r"\sqrt8") == 1.0
    assert pool._started
    first = pool._started.process
    os.kill(first.pid, signal.SIGKILL)
    assert compute_score("deepscaler", boxed(r"2\sqrt2"), r"\sqrt8") == 1.0
    assert pool._started.process.pid != first.pid
    assert first.pid not in children(os.getpid()), "a zombie is left"


def test_workers_that_are_killed_are_replaced() -> None:
    assert compute_score("deepscaler", boxed(r"2\sqrt2"), r"\sqrt8") == 1.0
    assert pool._started
    workers = children(pool._started.process.pid)
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    until(lambda: not any(alive(worker) for worker in workers), "workers die")
    found = compute_scores(["deepscaler"] * 3, [boxed(r"2\sqrt2")] * 3, [r"\sqrt8"] * 3)
    assert found == [1.0] * 3
    until(lambda: not workers & children(pool._started.process.pid), "no zombies")


def test_closing_leaves_no_process() -> None:
    assert compute_score("deepscaler", boxed(r"2\sqrt2"), r"\sqrt8") == 1.0
    assert pool._started
    server = pool._started.process.pid
    everyone = {server, *children(server)}
    pool.close()
    assert not any(alive(pid) for pid in everyone)
    assert server not in children(os.getpid())


def test_without_the_library_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first answer that needs algebra; a score of 0 instead would train on nothing."""
    pool.close()
    monkeypatch.setattr(pool, "LIBRARY", "no_such_library")
    assert compute_score("deepscaler", boxed("5"), "5") == 1.0
    with pytest.raises(ModuleNotFoundError, match="pip install 'math-verify"):
        compute_score("deepscaler", boxed(r"2\sqrt2"), r"\sqrt8")


PARENT = """
import json, os, sys
from npu_rl.runtime.deepscaler import compute_score, pool
assert compute_score("deepscaler", r"\\boxed{2\\sqrt2}", r"\\sqrt8") == 1.0
print(json.dumps([os.getpid(), pool._started.process.pid]), flush=True)
MORE
sys.stdin.read()
"""
FORK = """
if not os.fork():
    assert pool._started is None
    assert compute_score("deepscaler", r"\\boxed{3\\sqrt2}", r"\\sqrt{18}") == 1.0
    print(json.dumps([os.getpid(), pool._started.process.pid]), flush=True)
"""
BUSY = """
import threading
hostile = ("deepscaler", r"\\boxed{9^{9^9}}", r"\\sqrt8")
threading.Thread(target=compute_score, args=hostile, kwargs={"limit_s": 600.0}, daemon=True).start()
"""


@pytest.fixture
def parent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    code = PARENT.replace("MORE", request.param)
    with subprocess.Popen(
        [sys.executable, "-B", "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": on_path(ROOT), "NPU_RL_DEEPSCALER_WORKERS": "2"},
    ) as process:  # fmt: skip
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("parent", "how"),
    [("", signal.SIGTERM), (BUSY, signal.SIGKILL)],
    indirect=["parent"],
    ids=["idle", "busy"],
)
@pytest.mark.second
def test_children_end_with_their_parent(parent: subprocess.Popen[str], how: signal.Signals) -> None:
    assert parent.stdout
    own, server = json.loads(parent.stdout.readline())
    everyone = {server, *children(server)}
    assert len(everyone) > 1
    os.kill(own, how)
    parent.wait(30)
    until(lambda: not any(alive(pid) for pid in everyone), "children end")


@pytest.mark.parametrize("parent", [FORK], indirect=True)
@pytest.mark.second
def test_a_fork_has_processes_of_its_own(parent: subprocess.Popen[str]) -> None:
    """And holds nothing that would keep its parent's alive."""
    assert parent.stdout
    first, second = (json.loads(parent.stdout.readline()) for _ in range(2))
    assert {first[0], second[0]} >= {parent.pid}
    mine, forked = (first, second) if first[0] == parent.pid else (second, first)
    assert mine[1] != forked[1]
    everyone = {mine[1], *children(mine[1])}
    os.kill(parent.pid, signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in everyone), "the parent's processes end")
    assert alive(forked[1])
    os.kill(forked[0], signal.SIGKILL)
    until(lambda: not alive(forked[1]), "the fork's processes end")


def test_another_data_source_is_refused_unless_asked_for() -> None:
    sources = ["deepscaler", "openai/gsm8k", "aime", "openai/gsm8k"]
    responses, rights = [boxed("5")] * 4, ["5", "5", "6", "5"]
    with pytest.raises(ValueError, match=r"data source aime, openai/gsm8k: .*any_source: true"):
        compute_scores(sources, responses, rights)
    assert compute_scores(sources, responses, rights, any_source=True) == [1.0, 1.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="and 2 more"):
        compute_scores([f"d{n}" for n in range(7)], [boxed("5")] * 7, ["5"] * 7)


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (8, 8), (32, 32), (320, 32)])
def test_there_is_a_worker_per_core(monkeypatch: pytest.MonkeyPatch, cores: int, workers: int) -> None:
    """Up to 32; a host of Atlas A3 has hundreds of cores."""
    monkeypatch.delenv("NPU_RL_DEEPSCALER_WORKERS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    assert pool.workers_wanted() == workers


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.second
def test_from_a_process_pool(method: str) -> None:
    """verl's manager `prime` calls it from a ProcessPoolExecutor, each of whose processes has a server of its own."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as executor:
        found = list(
            executor.map(compute_score, ["deepscaler"] * 4, [boxed(r"2\sqrt2")] * 4, [r"\sqrt8"] * 3 + ["5"])
        )
    assert found == [1.0, 1.0, 1.0, 0.0]


@pytest.mark.second
def test_by_path_as_verl_loads_it(tmp_path: Path) -> None:
    """`custom_reward_function.path`: the module gets the name custom_module, and no package."""
    (tmp_path / "npu_rl_runtime").symlink_to(ROOT / "npu_rl" / "runtime")
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('custom_module', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "sys.modules['custom_module'] = module\n"
        "spec.loader.exec_module(module)\n"
        "print(module.compute_scores(data_sources=['deepscaler'] * 2, solution_strs=[r'\\boxed{2\\sqrt2}', '5'],\n"
        "      ground_truths=[r'\\sqrt8', '5'], extra_infos=[None, None]), module.compute_score.__module__)\n"
    )
    path = tmp_path / "npu_rl_runtime" / "rewards" / "deepscaler.py"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, str(path)],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": on_path(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[1.0, 0.0] npu_rl_runtime.deepscaler.score"


def test_switch_and_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NPU_RL_USAGE", str(tmp_path))
    assert scores("deepscaler")
    assert not scores("openai/gsm8k")
    monkeypatch.setenv("NPU_RL_DEEPSCALER_REWARD", "0")
    assert not scores("deepscaler")
    assert compute_scores(["deepscaler"] * 3, [boxed("5")] * 3, ["5"] * 3) == [1.0] * 3
    (file,) = tmp_path.iterdir()
    assert file.read_text().split() == ["3", "deepscaler-reward"]
