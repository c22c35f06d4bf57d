"""Benchmark of `npu-rl setup` against what people use today. See README.md beside this file.

NPU_RL_UPSTREAMS=DIR python -m benchmarks.bench --lab DIR --rounds 9
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType

from npu_rl.common.errors import NpuRlError, UsageError

from . import report, scenarios
from .copies import VARIABLE


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lab", type=Path, required=True, help="folder for copies and tools; reused")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds (default 9)")
    parser.add_argument(
        "--scenario", action="append", choices=list(scenarios.ALL), help="repeatable; default all"
    )
    parser.add_argument("--skip", action="append", default=[], metavar="CONTENDER", help="repeatable")
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter that has npu-rl's dependencies"
    )
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one run of one contender")
    parser.add_argument("--no-warm-up", action="store_true", help="no unrecorded first round")
    parser.add_argument(
        "--output", type=Path, help="folder for results.json and results.md (default: the lab)"
    )
    parser.add_argument(
        "--trials", type=Path, help="folder for workspaces (default: /dev/shm if roomy, or the lab)"
    )
    options = parser.parse_args(arguments)
    if not 1 <= options.rounds <= 100:
        raise UsageError("--rounds is a number from 1 to 100")
    options.lab = options.lab.absolute()
    options.output = (options.output or options.lab).absolute()
    return options


def run(arguments: list[str] | None = None) -> int:
    """Measure, write both reports, print the table. 1 if a contender failed or its result is wrong."""
    options = parse(arguments)
    options.lab.mkdir(parents=True, exist_ok=True)
    options.output.mkdir(parents=True, exist_ok=True)
    given = sys.argv[1:] if arguments is None else arguments
    results = report.Results(command=f"{VARIABLE}=... python -m benchmarks.bench {shlex.join(given)}")
    with scenarios.opened(options, results) as bench:
        for name in options.scenario or scenarios.ALL:
            scenarios.ALL[name](bench)
            bench.ground.clear()
            report.write(results, options.output)
    print(report.markdown(results))
    return 1 if results.troubles() else 0


def main() -> int:
    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        return run()
    except NpuRlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("Stopped; everything it started has ended.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
