"""A counting TCP proxy that can also be slow: `python -m benchmarks.proxy --help`.

Not netem, because that needs root and a kernel module. What it models: half a round trip each way, a
number of round trips before the first byte (TCP and TLS hand-shakes), and one downlink shared by all
connections. What it does not: loss, congestion windows, and an uplink limit (a fetch sends little).

The byte counters lie in a file mapped into memory, so a reader needs no word from the proxy.
The proxy ends when its standard input closes: it can't outlive the benchmark.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

COUNTERS = struct.Struct("=QQQ")  # bytes down, bytes up, connections
_CHUNK = 65536
_LEAD = 0.02  # seconds of data read ahead of the link's clock: a router's queue, not a warehouse


class Counters:
    """Three numbers in a file, written here and read by the benchmark."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(COUNTERS.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), COUNTERS.size)
        self.down = self.up = self.connections = 0

    def save(self) -> None:
        COUNTERS.pack_into(self._map, 0, self.down, self.up, self.connections)


def read_counters(path: Path) -> tuple[int, int, int]:
    """Bytes down, bytes up and connections so far."""
    down, up, connections = COUNTERS.unpack(path.read_bytes())
    return down, up, connections


@dataclass
class Link:
    """One way of data. `rate` in bytes per second, 0 for no limit; `latency` in seconds."""

    latency: float
    rate: float
    free_at: float = 0.0

    def deliver_at(self, size: int, now: float) -> tuple[float, float]:
        """When the link has taken the bytes, and when they arrive."""
        if not self.rate:
            return now, now + self.latency
        self.free_at = max(self.free_at, now) + size / self.rate
        return self.free_at, self.free_at + self.latency


class Proxy:
    """Serves until cancelled."""

    def __init__(self, target: int, link: Link, back: Link, connect: float, counters: Counters) -> None:
        self._target = target
        self._down, self._up = link, back
        self._connect = connect
        self._counters = counters

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._counters.connections += 1
        if self._connect:
            await asyncio.sleep(self._connect)
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            self._pump(reader, server_writer, self._up, down=False),
            self._pump(server_reader, writer, self._down, down=True),
        )
        for end in (writer, server_writer):
            end.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: Link, *, down: bool
    ) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)
        delivery = asyncio.create_task(_deliver(queue, writer))
        while not delivery.done():
            try:
                data = await reader.read(_CHUNK)
            except OSError:
                data = b""
            now = time.monotonic()
            self._count(len(data), down=down)
            taken, arrives = link.deliver_at(len(data), now)
            if taken - now > _LEAD:
                await asyncio.sleep(taken - now - _LEAD)
            put = asyncio.create_task(queue.put((arrives, data)))
            await asyncio.wait({put, delivery}, return_when=asyncio.FIRST_COMPLETED)
            put.cancel()
            if not data:
                break
        await delivery

    def _count(self, size: int, *, down: bool) -> None:
        if down:
            self._counters.down += size
        else:
            self._counters.up += size
        self._counters.save()


async def _deliver(queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    """Hand out what is due. Empty data is the end of this direction."""
    while True:
        due, data = await queue.get()
        wait = due - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        try:
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
        except (OSError, RuntimeError):  # the other side went away: nothing left to deliver to
            return


async def serve(arguments: argparse.Namespace) -> None:
    """Print the port, then serve until standard input closes."""
    half = arguments.rtt / 2000
    proxy = Proxy(
        arguments.target,
        Link(half, arguments.mbit * 1e6 / 8),
        Link(half, 0.0),
        arguments.connect * arguments.rtt / 1000,
        Counters(arguments.counters),
    )
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=int, required=True, help="port on 127.0.0.1 to pass on to")
    parser.add_argument("--rtt", type=float, default=0.0, help="round trip in ms")
    parser.add_argument("--mbit", type=float, default=0.0, help="downlink in Mbit/s, 0 for no limit")
    parser.add_argument("--connect", type=float, default=2.0, help="round trips before the first byte")
    parser.add_argument("--counters", type=Path, required=True, help="file for the byte counters")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
