"""Serve the copies on loopback: a git daemon, and proxies in front of it.

    NPU_RL_UPSTREAMS=... python -m benchmarks.serve --lab DIR

makes the copies, serves them until standard input closes, and prints the two addresses, for trials
by hand. The benchmark uses the context managers. Every process here watches a pipe from its parent
and ends with it.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.errors import HostError

from .copies import Copies, git
from .proxy import read_counters

SLOW_LINK = {"rtt": 50.0, "mbit": 100.0, "connect": 2.0}
_PATIENCE = 20.0  # seconds for a server to come up


@dataclass(frozen=True)
class Endpoint:
    """Where the copies are reachable. `counters` is there when a proxy counts the bytes."""

    port: int
    counters: Path | None = None

    @property
    def url(self) -> str:
        return f"git://127.0.0.1:{self.port}"

    def bytes_moved(self) -> int | None:
        """Bytes in both directions so far, None where nobody counts."""
        if self.counters is None:
            return None
        down, up, _ = read_counters(self.counters)
        return down + up


@contextmanager
def daemon(copies: Copies, log: Path) -> Iterator[Endpoint]:
    """A git daemon on a free port of 127.0.0.1. Raises HostError if it does not come up."""
    port = _free_port()
    program = Path(git("--exec-path").strip()) / "git-daemon"
    serving = [str(program), "--reuseaddr", "--listen=127.0.0.1", f"--port={port}", "--export-all"]
    serving += [
        "--max-connections=64",
        f"--base-path={copies.served.absolute()}",
        str(copies.served.absolute()),
    ]
    # The shell ends the daemon when the pipe to this process closes, however this process ended.
    watched = '"$@" <&- & pid=$!; trap "kill $pid; wait $pid" EXIT; trap "exit 0" TERM; cat >/dev/null'
    with (
        log.open("ab") as sink,
        _until_closed(["sh", "-c", watched, "sh", *serving], sink.fileno()) as process,
    ):
        _wait_for(port, process, log)
        yield Endpoint(port)


@contextmanager
def proxy(
    target: Endpoint, counters: Path, log: Path, *, rtt: float = 0.0, mbit: float = 0.0, connect: float = 0.0
) -> Iterator[Endpoint]:
    """A counting proxy in front of `target`: `rtt` in ms, `mbit` per second, `connect` in round trips."""
    command = [sys.executable, "-m", f"{__package__}.proxy", "--target", str(target.port)]
    command += [
        "--rtt",
        str(rtt),
        "--mbit",
        str(mbit),
        "--connect",
        str(connect),
        "--counters",
        str(counters),
    ]
    with log.open("ab") as sink, _until_closed(command, sink.fileno(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line.isdigit():
            raise HostError("The proxy did not start", where=str(log))
        yield Endpoint(int(line), counters)


@contextmanager
def _until_closed(
    command: list[str], stderr: int, stdout: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr)
    try:
        yield process
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise HostError("The git daemon did not come up", where=str(log), hint="Look into that log.")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lab", type=Path, required=True, help="folder for the copies, reused between runs")
    lab = parser.parse_args().lab.absolute()
    copies = Copies(lab)
    expected = copies.prepare()
    print(f"code tree without patches: {expected.tree}, {expected.files} files, {expected.size} bytes")
    with ExitStack() as stack:
        direct = stack.enter_context(daemon(copies, lab / "daemon.log"))
        slow = stack.enter_context(proxy(direct, lab / "counters", lab / "proxy.log", **SLOW_LINK))
        print(f"loopback: {direct.url}/NAME.git\nslow link: {slow.url}/NAME.git", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
