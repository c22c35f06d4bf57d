"""What is measured: each scenario sets up its contenders, then runs them in interleaved rounds."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import measure, report
from .copies import Copies, Expected, clean_environment
from .npurl import VERIFY_DEEP, VERIFY_QUICK, NpuRl
from .peers import Contender, Peers
from .serve import SLOW_LINK, Endpoint, daemon, proxy


@dataclass
class Bench:
    """Everything a scenario needs. `npurl` is None where npu-rl can't take part."""

    options: argparse.Namespace
    trials: Path
    results: report.Results
    expected: Expected
    copies: Copies
    peers: Peers
    npurl: NpuRl | None
    direct: Endpoint
    counting: Endpoint
    slow: Endpoint

    def folders(self, scenario: str, contender: Contender) -> tuple[Path, Path]:
        """The workspace and the cache of one contender in one scenario."""
        place = self.trials / scenario / contender.key.replace(" ", "-")
        place.mkdir(parents=True, exist_ok=True)
        return place / "workspace", place / "cache"

    def kept(self, contenders: list[Contender]) -> list[Contender]:
        return [c for c in contenders if c.key not in self.options.skip]


@contextmanager
def opened(options: argparse.Namespace, trials: Path, results: report.Results) -> Iterator[Bench]:
    """Copies made, peers installed, servers up; all of it down again afterwards. Raises HostError."""
    lab: Path = options.lab
    shutil.rmtree(trials, ignore_errors=True)
    trials.mkdir()
    environment = clean_environment(lab / "home")
    copies = Copies(lab)
    expected = copies.prepare()
    peers = Peers(lab, environment, expected.tar, options.python)
    results.describe(expected, peers.install())
    npurl = NpuRl(options.python, environment, lab)
    why_not = "skipped on the command line" if "npu-rl" in options.skip else npurl.missing()
    if why_not:
        results.notes.append(f"npu-rl did not take part: {why_not}.")
    log = lab / "servers.log"
    with ExitStack() as stack:
        direct = stack.enter_context(daemon(copies, log))
        counting = stack.enter_context(proxy(direct, lab / "counting.bytes", log))
        slow = stack.enter_context(proxy(direct, lab / "slow.bytes", log, **SLOW_LINK))
        yield Bench(
            options,
            trials,
            results,
            expected,
            copies,
            peers,
            None if why_not else npurl,
            direct,
            counting,
            slow,
        )


def cold_loopback(bench: Bench) -> None:
    table = report.Table("Cold, loopback", floor="tar")
    _rounds(bench, "cold-loopback", table, _cold(bench), bench.direct, fresh_cache=True)


def cold_slow_link(bench: Bench) -> None:
    table = report.Table("Cold, 50 ms round trip, 100 Mbit/s", floor="tar")
    _rounds(bench, "cold-slow-link", table, _cold(bench), bench.slow, fresh_cache=True)


def resources(bench: Bench) -> None:
    """Memory and bytes: a pass of its own, because sampling and counting take time."""
    table = report.Table(
        "Cold, loopback through a counting proxy (times here mean nothing)", floor="tar", timed=False
    )
    table.limits = {
        "a pack of just the packages (git pack-objects)": bench.copies.pack_size(package_only=True),
        "a pack of the seven full trees": bench.copies.pack_size(package_only=False),
    }
    rounds = min(3, bench.options.rounds)
    _rounds(
        bench, "resources", table, _cold(bench), bench.counting, fresh_cache=True, memory=True, rounds=rounds
    )


def warm(bench: Bench) -> None:
    """A second workspace where the first one has filled the caches."""
    table = report.Table("Second workspace, caches warm, loopback", floor="tar")
    contenders = [bench.peers.floor(), *bench.peers.warm()]
    if bench.npurl:
        contenders.append(bench.npurl.setup("npu-rl setup, store warm"))
    ready = []
    table.enter(bench.kept(contenders))
    for contender in table.contenders.values():
        workspace, cache = bench.folders("warm", contender)
        if _prepare(bench, table, contender, contender, workspace, cache):
            shutil.rmtree(workspace)
            ready.append(contender)
    _rounds(bench, "warm", table, ready, bench.direct)


def noop(bench: Bench) -> None:
    """The same command again in a finished workspace."""
    table = report.Table("Again, nothing to do, loopback", floor="typer")
    firsts = {c.key: c for c in bench.peers.cold()}
    pairs = [(firsts[c.key], c) for c in bench.peers.again()]
    if bench.npurl:
        pairs.append((_cold_npurl(bench.npurl), bench.npurl.setup("npu-rl setup, again")))
    _in_workspace(bench, "noop", table, pairs)


def verify_quick(bench: Bench) -> None:
    """Is the workspace what it should be, as far as a look at times and sizes can tell?"""
    west = next(c for c in bench.peers.cold() if c.key == "west")
    pairs = [(west, bench.peers.checks()[0])]
    if bench.npurl:
        pairs.append(
            (_cold_npurl(bench.npurl), bench.npurl.contender("npu-rl", "npu-rl verify", VERIFY_QUICK))
        )
    _in_workspace(bench, "verify-quick", report.Table("Verify, quick", floor="typer"), pairs)


def verify_deep(bench: Bench) -> None:
    """Is every byte what it should be?"""
    pairs = [(bench.peers.floor(), bench.peers.checks()[1])]
    if bench.npurl:
        deep = bench.npurl.contender("npu-rl", "npu-rl verify --deep", VERIFY_DEEP)
        pairs.append((_cold_npurl(bench.npurl), deep))
    _in_workspace(bench, "verify-deep", report.Table("Verify, every byte", floor="typer"), pairs)


ALL: dict[str, Callable[[Bench], None]] = {
    "cold-loopback": cold_loopback,
    "cold-slow-link": cold_slow_link,
    "resources": resources,
    "warm": warm,
    "noop": noop,
    "verify-quick": verify_quick,
    "verify-deep": verify_deep,
}


def _cold_npurl(npurl: NpuRl) -> Contender:
    return npurl.setup("npu-rl setup")


def _cold(bench: Bench) -> list[Contender]:
    contenders = [bench.peers.floor(), *bench.peers.cold()]
    if bench.npurl:
        contenders.append(_cold_npurl(bench.npurl))
    return bench.kept(contenders)


def _in_workspace(
    bench: Bench, name: str, table: report.Table, pairs: list[tuple[Contender, Contender]]
) -> None:
    """Measure the second of each pair in a workspace that the first one made."""
    ready = [bench.peers.import_floor()]
    pairs = [(first, contender) for first, contender in pairs if contender.key not in bench.options.skip]
    table.enter([*ready, *(contender for _, contender in pairs)])
    for first, contender in pairs:
        if _prepare(bench, table, contender, first, *bench.folders(name, contender)):
            ready.append(contender)
    _rounds(bench, name, table, ready, bench.direct, fresh_workspace=False)
    for contender in ready[1:]:
        table.notices[contender.key] = _notices(bench, contender, *bench.folders(name, contender))


def _prepare(
    bench: Bench, table: report.Table, contender: Contender, first: Contender, workspace: Path, cache: Path
) -> bool:
    _say(f"{table.title}: {contender.key}: prepare")
    command = first.command(bench.direct.url, workspace, cache)
    cost = measure.run(command, workspace.parent / "prepare.log", timeout=bench.options.timeout)
    if cost.code:
        table.trouble(contender, f"preparation ended with {cost.code}: {cost.error}")
    return not cost.code


def _rounds(
    bench: Bench,
    name: str,
    table: report.Table,
    contenders: list[Contender],
    endpoint: Endpoint,
    *,
    fresh_workspace: bool = True,
    fresh_cache: bool = False,
    memory: bool = False,
    rounds: int | None = None,
) -> None:
    """Run all contenders once a round, in an order that moves on by one each round."""
    bench.results.tables[name] = table
    table.enter(contenders)
    active = list(contenders)
    warm_up = 0 if bench.options.no_warm_up or memory else 1
    for number in range((rounds or bench.options.rounds) + warm_up):
        turn = number % len(active) if active else 0
        recorded = number >= warm_up
        table.loads.append(os.getloadavg()[0])
        for contender in active[turn:] + active[:turn]:
            workspace, cache = bench.folders(name, contender)
            for folder in [workspace] * fresh_workspace + [cache] * fresh_cache:
                shutil.rmtree(folder, ignore_errors=True)
            row = _trial(bench, table, contender, endpoint, workspace, cache, memory=memory)
            if row is None:
                active.remove(contender)
            elif recorded:
                table.rows.setdefault(contender.key, []).append(row)
    if fresh_workspace:
        shutil.rmtree(bench.trials / name, ignore_errors=True)


def _trial(
    bench: Bench,
    table: report.Table,
    contender: Contender,
    endpoint: Endpoint,
    workspace: Path,
    cache: Path,
    *,
    memory: bool,
) -> report.Row | None:
    """One run with its result checked. None, and the reason in the table, if it went wrong."""
    command = contender.command(endpoint.url, workspace, cache)
    os.sync()  # the writes of the one before are not this one's burden
    before = endpoint.bytes_moved()
    cost = measure.run(command, workspace.parent / "run.log", timeout=bench.options.timeout, memory=memory)
    after = endpoint.bytes_moved()
    _say(f"{table.title}: {contender.key}: {cost.wall:.2f} s")
    if cost.code:
        table.trouble(contender, f"ended with {cost.code}: {cost.error}")
        return None
    wrong = _wrong(bench, contender, workspace)
    if wrong:
        table.trouble(contender, wrong)
        return None
    moved = after - before if before is not None and after is not None else None
    return report.Row(cost, moved, measure.disk_usage(workspace, cache))


def _wrong(bench: Bench, contender: Contender, workspace: Path) -> str | None:
    """What is wrong with the code tree, or None. A contender without a workspace has none."""
    if not (workspace / "code").is_dir():
        return None if contender.key == "typer" else "it left no code tree"
    if contender.key == "npu-rl":
        return bench.npurl.check(workspace) if bench.npurl else None
    found = measure.tree_id(workspace / "code")
    return None if found == bench.expected.tree else f"code tree is {found}, not {bench.expected.tree}"


def _notices(bench: Bench, contender: Contender, workspace: Path, cache: Path) -> bool:
    """Whether one changed byte in the code tree makes the command fail, or is put right by it.

    Size and modification time stay as they were: this is what an unlucky copy or a bad disk leaves.
    """
    victim = min(
        (workspace / "code" / "megatron").rglob("*.py"), key=lambda path: (-path.stat().st_size, path)
    )
    data = bytearray(victim.read_bytes())
    data[0] ^= 1
    before = victim.stat()
    victim.write_bytes(data)
    os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    command = contender.command(bench.direct.url, workspace, cache)
    cost = measure.run(command, workspace.parent / "changed.log", timeout=bench.options.timeout)
    return cost.code != 0 or _wrong(bench, contender, workspace) is None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
