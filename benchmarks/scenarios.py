"""What is measured: each scenario names its contenders and what may be there before they start."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from . import report
from .copies import Copies, clean_environment
from .npurl import VERIFY_DEEP, VERIFY_QUICK, NpuRl
from .peers import Contender, Peers
from .rounds import Bench, Scenario, TrialGround
from .serve import SLOW_LINK, daemon, proxy


@contextmanager
def opened(options: argparse.Namespace, results: report.Results) -> Iterator[Bench]:
    """Copies made, peers installed, servers up; all of it down again afterwards. Raises HostError."""
    environment = clean_environment(options.lab / "home")
    copies = Copies(options.lab)
    expected = copies.prepare()
    peers = Peers(options.lab, environment, expected.tar, options.python)
    versions = peers.install()
    npurl = NpuRl(options.python, environment, options.lab)
    why_not = "skipped on the command line" if "npu-rl" in options.skip else npurl.missing()
    if why_not:
        results.notes.append(f"npu-rl did not take part: {why_not}.")
    log = options.lab / "servers.log"
    with ExitStack() as stack:
        direct = stack.enter_context(daemon(copies, log))
        counting = stack.enter_context(proxy(direct, options.lab / "counting.bytes", log))
        slow = stack.enter_context(proxy(direct, options.lab / "slow.bytes", log, **SLOW_LINK))
        ground = stack.enter_context(TrialGround(options.trials, options.lab))
        results.describe(expected, versions, ground.kind)
        taking_part = None if why_not else npurl
        yield Bench(options, results, expected, copies, peers, taking_part, ground, direct, counting, slow)


def cold_loopback(bench: Bench) -> None:
    table = report.Table("Cold, loopback", floor="tar")
    Scenario(bench, "cold-loopback", table, bench.direct).rounds(_cold(bench))


def cold_slow_link(bench: Bench) -> None:
    table = report.Table("Cold, 50 ms round trip, 100 Mbit/s", floor="tar")
    Scenario(bench, "cold-slow-link", table, bench.slow).rounds(_cold(bench))


def resources(bench: Bench) -> None:
    """Memory and bytes: a pass of its own, because sampling and counting take time."""
    table = report.Table("Memory and bytes, cold, loopback", floor="tar", timed=False)
    table.limits = {
        "a pack of just the packages (git pack-objects)": bench.copies.pack_size(package_only=True),
        "a pack of the seven full trees": bench.copies.pack_size(package_only=False),
    }
    Scenario(bench, "resources", table, bench.counting, memory=True).rounds(_cold(bench))


def warm(bench: Bench) -> None:
    """A second workspace where the first one has filled the caches."""
    table = report.Table("Second workspace, caches warm, loopback", floor="tar")
    contenders = [bench.peers.floor(), *bench.peers.warm()]
    if bench.npurl:
        contenders.append(bench.npurl.setup("npu-rl setup, store warm"))
    scenario = Scenario(bench, "warm", table, bench.direct, keep="cache")
    scenario.rounds(scenario.prepare([(c, c) for c in contenders]))


def noop(bench: Bench) -> None:
    """The same command again in a finished workspace."""
    firsts = {c.key: c for c in bench.peers.cold()}
    pairs = [(firsts[c.key], c) for c in bench.peers.again()]
    if bench.npurl:
        pairs.append((_cold_npurl(bench.npurl), bench.npurl.setup("npu-rl setup, again")))
    _in_workspace(bench, "noop", "Again, nothing to do, loopback", pairs)


def verify_quick(bench: Bench) -> None:
    """Is the workspace what it should be, as far as a look at times and sizes can tell?"""
    west = next(c for c in bench.peers.cold() if c.key == "west")
    pairs = [(west, bench.peers.checks()[0])]
    if bench.npurl:
        quick = bench.npurl.contender("npu-rl", "npu-rl verify", VERIFY_QUICK)
        pairs.append((_cold_npurl(bench.npurl), quick))
    _in_workspace(bench, "verify-quick", "Verify, quick", pairs)


def verify_deep(bench: Bench) -> None:
    """Is every byte what it should be?"""
    pairs = [(bench.peers.floor(), bench.peers.checks()[1])]
    if bench.npurl:
        deep = bench.npurl.contender("npu-rl", "npu-rl verify --deep", VERIFY_DEEP)
        pairs.append((_cold_npurl(bench.npurl), deep))
    _in_workspace(bench, "verify-deep", "Verify, every byte", pairs)


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
    return contenders


def _in_workspace(bench: Bench, name: str, title: str, pairs: list[tuple[Contender, Contender]]) -> None:
    """Measure the second of each pair in a workspace that the first one made."""
    table = report.Table(title, floor="typer")
    table.enter([bench.peers.import_floor()])
    scenario = Scenario(bench, name, table, bench.direct, keep="all")
    ready = scenario.prepare(pairs)
    scenario.rounds([bench.peers.import_floor(), *ready])
    scenario.change_a_byte(ready)
