"""Runs of one kind of mutated input in this process, with bounded memory and time.

NPU_RL_MUTATIONS: how many inputs of each kind (40; the long tier has 400). NPU_RL_MUTATION_SEED: which (0). A failure
prints its case; the same seed gives it again.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from npu_rl.common.errors import NpuRlError
from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError
from tests.hostile.mutate import Mutator, Unchanged

MUTATIONS = int(os.environ.get("NPU_RL_MUTATIONS", "40"))
SEED = os.environ.get("NPU_RL_MUTATION_SEED", "0")
SECONDS = 10  # of CPU of one case; on the clock, where others may keep the cores busy, twelve times as many
MEMORY = 1_500_000_000  # bytes of address space that one case may add
ALL = range(-1, MUTATIONS)

Case = Callable[[Mutator], None]


class TooSlow(BaseException):
    """A case that does not end: no `except Exception` catches it."""


@dataclass
class Outcome:
    """What became of a kind's cases."""

    failures: list[str] = field(default_factory=list)
    refused: int = 0


def run_cases(kind: str, case: Case, numbers: Iterable[int] = ALL) -> Outcome:
    """Run the cases of a kind; -1 is the unchanged input."""
    outcome = Outcome()
    for number in numbers:
        mutator = Mutator(f"{SEED}/{kind}/{number}") if number >= 0 else Unchanged(f"{SEED}/{kind}")
        try:
            with bounded():
                case(mutator)
        except (NpuRlError, TensorError) as error:
            assert str(error).strip()
            outcome.refused += number >= 0
        except (Exception, TooSlow) as error:  # noqa: BLE001
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{last.filename}:{last.lineno}"
            outcome.failures.append(f"case {number}: {type(error).__name__}: {str(error)[:200]} at {place}")
            if os.environ.get("NPU_RL_MUTATION_TRACE"):
                traceback.print_exception(error)
    return outcome


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Stop what goes on for too long or takes too much memory; what no signal reaches, with the process."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = {number: signal.signal(number, ring) for number in (signal.SIGALRM, signal.SIGPROF)}
    faulthandler.dump_traceback_later(15 * SECONDS, exit=True)
    signal.setitimer(signal.ITIMER_REAL, 12 * SECONDS)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
        for number, handler in before.items():
            signal.signal(number, handler)
