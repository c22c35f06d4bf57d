"""Is any command slower than it was? Two installed versions of npu-rl, interleaved, as ratios.

    python -m benchmarks.side_by_side --before OLD/bin/npu-rl --after NEW/bin/npu-rl --rounds 21

Each version sets up a quickstart workspace of its own (PyPI is needed for that) in a temporary folder with its own
store. Then every round runs each command once with either version; which goes first alternates. Printed are the
medians, and the median of the rounds' ratios after / before.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

COMMANDS: dict[str, tuple[str, ...]] = {
    "--version": ("--version",),
    "--help": ("--help",),
    "list": ("list",),
    "setup, nothing to do": ("setup", "--manifest", "quickstart", "--workspace", "{ws}"),
    "verify": ("verify", "--workspace", "{ws}"),
    "verify --deep": ("verify", "--deep", "--workspace", "{ws}"),
    "status": ("status", "--workspace", "{ws}"),
    "diff": ("diff", "--workspace", "{ws}"),
    "recipes check": ("recipes", "check", "quickstart", "--workspace", "{ws}"),
    "plan": ("plan", "quickstart", "--workspace", "{ws}"),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", type=Path, required=True, help="the older npu-rl")
    parser.add_argument("--after", type=Path, required=True, help="the newer npu-rl")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", action="append", help="one of the commands; may be repeated")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="npu-rl-side-by-side-") as folder:
        sides = [
            Side(program.absolute(), Path(folder) / name)
            for name, program in (("before", arguments.before), ("after", arguments.after))
        ]
        for side in sides:
            side.set_up()
        time.sleep(4.0)  # verify records a file it has read once its last change is 3 s old
        print(f"{'command':<24} {'before':>9} {'after':>9}  after / before")
        for name, words in COMMANDS.items():
            if not arguments.only or name in arguments.only:
                _compare(name, words, sides, arguments.rounds)


class Side:
    """One version with a home, a store and a workspace of its own."""

    def __init__(self, program: Path, home: Path) -> None:
        self.program = program
        self.workspace = home / "ws"
        self._environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("NPU_RL_", "PYTHON"))
            },
            "NPU_RL_STORE": str(home / "store"),
            "XDG_CACHE_HOME": str(home / "cache"),
        }
        home.mkdir()

    def set_up(self) -> None:
        """A new workspace, proven once so that the quick look has its record."""
        for words in (("setup", "--manifest", "quickstart", "--workspace", "{ws}"), COMMANDS["verify"]):
            self.run(words)

    def run(self, words: Sequence[str]) -> float:
        """Seconds that one command took. Raises CalledProcessError if it fails."""
        argv = [str(self.program), *(word.format(ws=self.workspace) for word in words)]
        began = time.perf_counter()
        done = subprocess.run(argv, env=self._environment, capture_output=True, check=False)
        took = time.perf_counter() - began
        done.check_returncode()
        return took


def _compare(name: str, words: Sequence[str], sides: Sequence[Side], rounds: int) -> None:
    for side in sides:
        side.run(words)  # not counted: caches
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for index in (0, 1) if number % 2 else (1, 0):
            times[index].append(sides[index].run(words))
    ratios = [after / before for before, after in zip(*times, strict=True)]
    before, after = map(statistics.median, times)
    print(
        f"{name:<24} {before * 1000:6.0f} ms {after * 1000:6.0f} ms  {statistics.median(ratios):.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
