"""Benchmark of the deepscaler reward: 8,192 responses of one training step, hostile ones among them.

    python -m benchmarks.reward [--workers N] [--rounds R] [--manager batch|naive|both]

Needs math-verify. Manager `batch` is what the recipe names: one call of `compute_scores` for all responses. `naive` is
verl's default: a call of `compute_score` per response, one after the other, which more cores don't help; it is
measured on `step` alone. Decoding the tokens is verl's with both managers, and is not measured.

`step`: 512 problems, 16 responses each; 70 % of the problems ask for a number, the others for algebra of many kinds;
half of the responses are right, in spellings of their own, and 64 are hostile, each its own. `distinct`: a problem for
each response, so nothing is saved. `all-algebra`: `distinct`, without a single plain number.

The processes are up before the clock starts (`start` says how long that takes). Shown: wall time; CPU seconds of the
caller, of the server and of the workers; and what N cores would take: caller + server + workers / N, an estimate
that is honest only where the workers never wait. The share of right answers is checked; nothing is asserted about time.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import time
from pathlib import Path
from typing import Any

from npu_rl.runtime.deepscaler import compute_score, compute_scores, pool

SOURCE = "deepscaler"
CORES = 8
HOSTILE = 64
_TICK = os.sysconf("SC_CLK_TCK")


def _number(rng: random.Random) -> tuple[str, list[str], list[str]]:
    n, d = rng.randint(2, 5000), rng.choice([1, 1, 1, 2, 3, 7])
    right = (
        [f"{n}/{d}", rf"\frac{{{n}}}{{{d}}}", rf"\dfrac{{{2 * n}}}{{{2 * d}}}"]
        if d > 1
        else [f"{n}", f"{n:,}", f"{n}.0"]
    )
    return right[0], right, [f"{n + rng.randint(1, 9)}" for _ in range(8)]


def _algebra(rng: random.Random) -> tuple[str, list[str], list[str]]:
    a, b, c = rng.randint(2, 99), rng.randint(2, 99), rng.randint(2, 30)
    kinds = [
        (
            rf"{a}\sqrt{{{b}}}",
            [rf"\sqrt{{{a * a * b}}}", rf"\sqrt{{{b}}}\cdot {a}"],
            [rf"{a + 1}\sqrt{{{b}}}"],
        ),
        (
            rf"\frac{{{a}\pi}}{{{b}}}",
            [rf"\frac{{{a}}}{{{b}}}\pi", rf"{a}\pi/{b}"],
            [rf"\frac{{{a}\pi}}{{{b + 1}}}"],
        ),
        (f"(x+{a})^2", [f"x^2+{2 * a}x+{a * a}"], [f"x^2+{2 * a}x+{a}"]),
        (rf"({a},{b})", [rf"\left({a}, {b}\right)"], [f"({b},{a + b})"]),
        (f"{a}, {a + b}", [f"{a + b}, {a}", rf"\{{{a}, {a + b}\}}"], [f"{a}", f"{a}, {a + b}, {c}"]),
        (rf"[{a},\infty)", [rf"x \ge {a}"], [rf"({a},\infty)"]),
        (rf"{a}+{b}i", [rf"{b}i+{a}"], [rf"{a}-{b}i"]),
        (rf"2^{{{c}}}\cdot {a}", [str(2**c * a), rf"{a} \cdot 2^{{{c}}}"], [str(2**c * a + 1)]),
        (rf"\frac{{{a}n+{b}}}{{n}}", [rf"{a}+\frac{{{b}}}{{n}}"], [rf"{a}+\frac{{n}}{{{b}}}"]),
        (rf"\log_{{{c}}} {a}", [rf"\frac{{\ln {a}}}{{\ln {c}}}"], [rf"\log_{{{a}}} {c}"]),
    ]
    return rng.choice(kinds)


def batch(kind: str) -> tuple[list[str], list[str], list[bool]]:
    """Responses, right answers, and whether each is right."""
    rng = random.Random(7)
    texts, rights, expected = [], [], []
    per_problem = 16 if kind == "step" else 1
    numbers = {"step": 0.7, "distinct": 0.7, "all-algebra": 0.0}[kind]
    prose = "First, let us see. " * 300  # about as long as an answer may be
    while len(texts) < 8192:
        right, ways, wrong = _number(rng) if rng.random() < numbers else _algebra(rng)
        for _ in range(per_problem):
            good = rng.random() < 0.5
            texts.append(
                rf"<think>{prose}</think><answer>\boxed{{{rng.choice(ways if good else wrong)}}}</answer>"
            )
            rights.append(right)
            expected.append(good)
    forms = [
        r"9^{{9^{{{0}}}}}",
        r"(10^{{{0}}})!",
        r"\sum_{{k=1}}^{{10^9}} k^{{{0}}}!",
        r"(a+b+c+d+e)^{{{0}}}",
    ]
    hostile = [forms[n % 4].format(60 + n) for n in range(HOSTILE)]
    for number, at in enumerate(rng.sample(range(8192), HOSTILE)):
        texts[at], rights[at], expected[at] = rf"\boxed{{{hostile[number]}}}", r"\sqrt{17}+x", False
    return texts, rights, expected


def _cpu(pid: int) -> tuple[float, float]:
    """CPU seconds of a process, and of its children that ended."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _TICK, (int(words[13]) + int(words[14])) / _TICK


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _spent(server: int) -> tuple[float, float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    own, ended = _cpu(server)
    return usage.ru_utime + usage.ru_stime, own, ended + sum(_cpu(child)[0] for child in _children(server))


def _scored(manager: str, texts: list[str], rights: list[str]) -> list[Any]:
    """As verl's reward manager of that name calls the reward."""
    if manager == "batch":
        return compute_scores([SOURCE] * len(texts), texts, rights, details=True)
    return [
        compute_score(SOURCE, text, right, details=True) for text, right in zip(texts, rights, strict=True)
    ]


def measure(kind: str, manager: str = "batch") -> None:
    texts, rights, expected = batch(kind)
    began = time.perf_counter()
    compute_scores([SOURCE], [r"\boxed{2\sqrt2}"], [r"\sqrt8"])
    assert pool._started
    start, server = time.perf_counter() - began, pool._started.process.pid
    before, began = _spent(server), time.perf_counter()
    found = _scored(manager, texts, rights)
    wall = time.perf_counter() - began
    caller, serving, working = (b - a for a, b in zip(before, _spent(server), strict=True))
    late = sum(bool(one["limit"]) for one in found)
    wrong = sum(one["accuracy"] != good for one, good in zip(found, expected, strict=True))
    estimate = caller + serving + working / CORES
    print(f"{manager:5} {kind:12} start {start:5.2f} s  wall {wall:6.2f} s", end="")
    print(f"  CPU: caller {caller:5.2f}  server {serving:5.2f}", end="")
    print(f"  workers {working:6.2f}", end="")
    print(f"  -> {CORES} cores {estimate:5.2f} s" if manager == "batch" else "", end="")
    print(f"  ended at the limit {late}, not as expected {wrong} of {len(found)}")
    pool.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=None, help="default: one per core")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--manager", choices=["batch", "naive", "both"], default="batch")
    options = parser.parse_args()
    if options.workers:
        os.environ["NPU_RL_DEEPSCALER_WORKERS"] = str(options.workers)
    print(f"{pool.workers_wanted()} workers on {os.cpu_count()} cores")
    for _ in range(options.rounds):
        if options.manager != "naive":
            for kind in ("step", "distinct", "all-algebra"):
                measure(kind)
        if options.manager != "batch":
            measure("step", "naive")


if __name__ == "__main__":
    main()
