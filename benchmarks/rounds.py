"""The engine: contenders run in interleaved rounds, each on fresh ground, each result checked."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal

from . import measure, report
from .copies import Copies, Expected
from .npurl import NpuRl
from .peers import Contender, Peers
from .serve import Endpoint


@dataclass(frozen=True)
class Place:
    """Where one run of one contender works. Neither folder need exist yet."""

    workspace: Path
    cache: Path


_MEMORY_DISK = Path("/dev/shm")
_ROOM = 4 << 30  # bytes: what the trials need at most, twice over


class TrialGround:
    """Makes a new folder for each run and takes everything away in the end.

    ext4 won't reuse an inode that was freed less than a few minutes ago: where thousands have just been
    deleted it searches past all of them for every new file, and `tar -xf` was seen to take 15 times as
    long. So trials are made in memory where there is room. On a disk, `chattr +T` makes ext4 put each new
    folder into another part of it, which helps mostly; on other file systems it fails and does no harm.
    """

    def __init__(self, wanted: Path | None, lab: Path) -> None:
        """wanted: where the caller wants the trials; None leaves the choice to this class."""
        roomy = os.access(_MEMORY_DISK, os.W_OK) and shutil.disk_usage(_MEMORY_DISK).free >= _ROOM
        parent = wanted or (_MEMORY_DISK if roomy else lab)
        self.kind = file_system(parent)
        self._root = parent / f"npu-rl-trials-{os.getpid()}"
        self._count = 0

    def __enter__(self) -> TrialGround:
        for left in self._root.parent.glob("npu-rl-trials-*"):  # by a run that was killed outright
            if not Path("/proc", left.name.rpartition("-")[2]).exists():
                shutil.rmtree(left, ignore_errors=True)
        self._root.mkdir(parents=True)
        if shutil.which("chattr"):
            subprocess.run(["chattr", "+T", str(self._root)], stderr=subprocess.DEVNULL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def fresh(self) -> Path:
        self._count += 1
        folder = self._root / str(self._count)
        folder.mkdir()
        return folder

    def clear(self) -> None:
        """Take away what a scenario has left."""
        for folder in self._root.iterdir():
            shutil.rmtree(folder)


def file_system(folder: Path) -> str:
    """The type of the file system that a folder is on, "unknown" where /proc/mounts does not say."""
    place = folder.resolve()
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    found = [(len(where), kind) for where, kind in mounts if place.is_relative_to(where)]
    return max(found)[1] if found else "unknown"


@dataclass(frozen=True)
class Bench:
    """Everything a scenario needs. `npurl` is None where npu-rl can't take part."""

    options: argparse.Namespace
    results: report.Results
    expected: Expected
    copies: Copies
    peers: Peers
    npurl: NpuRl | None
    ground: TrialGround
    direct: Endpoint
    counting: Endpoint
    slow: Endpoint


@dataclass
class Scenario:
    """One table in the making. `keep`: what a contender finds from its preparation in each round."""

    bench: Bench
    name: str
    table: report.Table
    endpoint: Endpoint
    keep: Literal["nothing", "cache", "all"] = "nothing"
    memory: bool = False
    kept: dict[str, Place] = field(default_factory=dict)

    def prepare(self, pairs: list[tuple[Contender, Contender]]) -> list[Contender]:
        """Let the first of each pair make what the second finds. Returns those whose preparation worked."""
        pairs = [(first, contender) for first, contender in pairs if not self._skipped(contender)]
        self.table.enter([contender for _, contender in pairs])
        ready = []
        for first, contender in pairs:
            place = self._new_place()
            command = first.command(self.bench.direct.url, place.workspace, place.cache)
            log = place.workspace.parent / "prepare.log"
            cost = measure.run(command, log, timeout=self.bench.options.timeout)
            self._say(contender, f"prepared in {cost.wall:.2f} s")
            if cost.code:
                self.table.trouble(contender, f"preparation ended with {cost.code}: {cost.error}")
                continue
            self.kept[contender.key] = place
            ready.append(contender)
        return ready

    def rounds(self, contenders: list[Contender]) -> None:
        """Run all contenders once a round, in an order that moves on by one each round."""
        options = self.bench.options
        active = [c for c in contenders if not self._skipped(c)]
        self.bench.results.tables[self.name] = self.table
        self.table.enter(active)
        warm_up = 0 if options.no_warm_up or self.memory else 1
        count = min(3, options.rounds) if self.memory else options.rounds
        for number in range(count + warm_up):
            turn = number % len(active)
            self.table.loads.append(os.getloadavg()[0])
            for contender in active[turn:] + active[:turn]:
                row = self._trial(contender)
                if row is None:
                    active.remove(contender)
                elif number >= warm_up:
                    self.table.rows.setdefault(contender.key, []).append(row)

    def change_a_byte(self, contenders: list[Contender]) -> None:
        """Find out who notices one changed byte in the code tree: it fails, or puts the byte right.

        Size and modification time stay as they were: this is what an unlucky copy or a bad disk leaves.
        """
        for contender in contenders:
            place = self.kept[contender.key]
            files = (place.workspace / "code" / "megatron").rglob("*.py")
            victim = min(files, key=lambda path: (-path.stat().st_size, path))
            before = victim.stat()
            data = bytearray(victim.read_bytes())
            data[0] ^= 1
            victim.write_bytes(data)
            os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
            command = contender.command(self.endpoint.url, place.workspace, place.cache)
            log = place.workspace.parent / "changed.log"
            cost = measure.run(command, log, timeout=self.bench.options.timeout)
            right_again = self._wrong(contender, place.workspace) is None
            self.table.notices[contender.key] = cost.code != 0 or right_again

    def _trial(self, contender: Contender) -> report.Row | None:
        """One run with its result checked. None, and the reason in the table, if it went wrong."""
        place = self._place(contender)
        command = contender.command(self.endpoint.url, place.workspace, place.cache)
        os.sync()  # the writes of the one before are not this one's burden
        before = self.endpoint.bytes_moved()
        log = place.workspace.parent / "run.log"
        cost = measure.run(command, log, timeout=self.bench.options.timeout, memory=self.memory)
        after = self.endpoint.bytes_moved()
        self._say(contender, f"{cost.wall:.2f} s")
        wrong = (
            f"ended with {cost.code}: {cost.error}" if cost.code else self._wrong(contender, place.workspace)
        )
        moved = after - before if before is not None and after is not None else None
        disk = measure.disk_usage(place.workspace, place.cache)
        if self.keep != "all":
            shutil.rmtree(place.workspace.parent)
        if wrong:
            self.table.trouble(contender, wrong)
            return None
        return report.Row(cost, moved, disk)

    def _place(self, contender: Contender) -> Place:
        kept = self.kept.get(contender.key)
        if self.keep == "all" and kept:
            return kept
        fresh = self._new_place()
        return Place(fresh.workspace, kept.cache) if kept else fresh

    def _new_place(self) -> Place:
        folder = self.bench.ground.fresh()
        return Place(folder / "workspace", folder / "cache")

    def _wrong(self, contender: Contender, workspace: Path) -> str | None:
        """What is wrong with the code tree, or None. The import floor has none."""
        if contender.key == self.table.floor and self.table.floor != "tar":
            return None
        if not (workspace / "code").is_dir():
            return "it left no code tree"
        if contender.key == "npu-rl":
            return self.bench.npurl.check(workspace) if self.bench.npurl else None
        wanted, found = self.bench.expected.tree, measure.tree_id(workspace / "code")
        return None if found == wanted else f"code tree is {found}, not {wanted}"

    def _skipped(self, contender: Contender) -> bool:
        return contender.key in self.bench.options.skip

    def _say(self, contender: Contender, text: str) -> None:
        print(f"{self.name}: {contender.key}: {text}", file=sys.stderr, flush=True)
