"""The processes of a hanging run, grouped by activity, anomalous groups first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from npu_rl.training.monitor.stack_text import Frame, Stack, parse_stacks

_STOPPED, _ENDED = ("T", "t"), ("Z", "X")
_MOST_PROCESSES = 20_000
_RAY = "/ray/"
# Files whose functions wait for work, at the inner end of a thread that has none.
_IDLE_FILES = (
    *(
        "/threading.py",
        "/queue.py",
        "/selectors.py",
        "/concurrent/futures/thread.py",
        "/multiprocessing/connection.py",
    ),
    *(
        "/asyncio/base_events.py",
        "/asyncio/runners.py",
        "/socketserver.py",
        "/tqdm/_monitor.py",
        "/grpc/_channel.py",
    ),
)
_COLLECTIVE = ("/torch/distributed/", "/torch_npu/distributed/")
_LIBRARIES = ("/lib/python3", "/site-packages/", "/dist-packages/", "<frozen", "<string")
# Processes of Ray itself, by what their command has: they train nothing.
_OF_RAY = ("/ray/dashboard/", "/ray/_private/", "/ray/autoscaler/", "gcs_server", "raylet", "ray::IDLE")
_DRIVER = "npu_rl_driver"
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "multiprocessing.spawn")


@dataclass(frozen=True)
class RunProcess:
    """A process of a run, as found by npu_rl_stack_dump.py.

    Attributes:
        rank: Its rank, of itself or of the process it descends from; None for the trainer and others.
        world: The number of ranks of its group.
        child: Whether it has its rank from its parent.
        how: What gave its stacks, or why there are none.
    """

    host: str
    ip: str
    pid: int
    name: str
    state: str
    rank: int | None
    world: int | None
    group: str
    child: bool
    how: str
    stacks: tuple[Stack, ...] = field(default=(), repr=False)

    @property
    def title(self) -> str:
        """Display name of the process: `rank 3 (node2, pid 12)`."""
        where = f"{self.host}, pid {self.pid}"
        if self.rank is None:
            short = "driver" if _DRIVER in self.name else self.name.split(" ")[0].rsplit("/", 1)[-1]
            return f"{short or 'process'} ({where})"
        return f"{'a child of ' if self.child else ''}rank {self.rank} ({where})"

    @property
    def stopped(self) -> bool:
        """Return whether a signal has stopped the process."""
        return self.state in _STOPPED

    @property
    def ended(self) -> bool:
        """Return whether the process has ended without being reaped by its parent."""
        return self.state in _ENDED

    @property
    def of_ray(self) -> bool:
        """Return whether the process belongs to Ray or Python itself, and does no work of the run."""
        return any(word in self.name for word in (*_OF_RAY, *_HELPERS))

    @property
    def working(self) -> Stack:
        """The stack that shows the work: the main thread's, or another's if the main thread only waits."""
        if not self.stacks:
            return ()
        main, *others = self.stacks
        if not _waits(main):
            return main
        busy = [stack for stack in others if not _waits(stack)]
        return busy[0] if busy else main

    @property
    def waits(self) -> bool:
        """Return whether the process only waits for work or for results from Ray."""
        return bool(self.stacks) and _waits(self.working)

    @property
    def in_collective(self) -> bool:
        """Return whether the process is in a collective operation."""
        return any(word in frame.file for frame in self.working[:8] for word in _COLLECTIVE)


@dataclass(frozen=True)
class StackGroup:
    """Processes with the same activity."""

    members: tuple[RunProcess, ...]

    @property
    def what(self) -> str:
        """The activity of the processes, in one line."""
        one = self.members[0]
        if one.ended:
            return "has ended, and its parent has not noticed"
        place = _place(one.working)
        if one.stopped:
            return f"stopped (by a signal){f' in {place}' if place else f'; {one.how}' if one.how else ''}"
        if not one.stacks:
            return f"no stacks{f': {one.how}' if one.how else ''}"
        if one.waits and one.working[0].function == "main_loop":
            return f"waits for its next task, in {one.working[0].short}"
        return f"waits in {place}" if one.waits else f"in {place}"

    @property
    def who(self) -> str:
        """The names of the processes, the first few with host and pid."""
        ranks = [one for one in self.members if one.rank is not None and not one.child]
        if len(self.members) == 1 or not ranks:
            shown = ", ".join(one.title for one in self.members[:3])
            return shown + (f" and {len(self.members) - 3} more" if len(self.members) > 3 else "")
        return f"{len(self.members)} ranks: {_ranges([one.rank for one in ranks if one.rank is not None])}"


def read_processes(found: Mapping[str, Any]) -> list[RunProcess]:
    """Return the processes reported by the nodes, leaving out malformed entries."""
    processes: dict[tuple[str, int], RunProcess] = {}  # two nodes of one host see the same ones
    for node in _rows(found.get("nodes")):
        rows = _rows(node.get("processes"))
        by_pid = {_number(row.get("pid")): row for row in rows}
        for row in rows[: _MOST_PROCESSES - len(processes)]:
            one = _process(row, by_pid.get(_number(row.get("parent")), {}), node)
            processes.setdefault((one.host, one.pid), one)
    return list(processes.values())


def _process(row: Mapping[str, Any], parent: Mapping[str, Any], node: Mapping[str, Any]) -> RunProcess:
    own = row if row.get("rank") is not None else parent  # one that has ended has no variables left
    rank = _number(own.get("rank"))
    return RunProcess(
        host=str(node.get("host", "?"))[:100],
        ip=str(node.get("ip", ""))[:100],
        pid=_number(row.get("pid")) or 0,
        name=str(row.get("name", ""))[:300],
        state=str(row.get("state", ""))[:1],
        rank=rank,
        world=_number(own.get("world")),
        group=str(own.get("group") or "")[:100],
        child=rank is not None and _number(parent.get("rank")) == rank,
        how=str(row.get("how", ""))[:300],
        stacks=tuple(parse_stacks(str(row.get("text", "")))),
    )


def group_processes(processes: Iterable[RunProcess]) -> list[StackGroup]:
    """Group the processes by activity, anomalous ones first. Ray's own are left out unless they are stopped."""
    found: dict[object, list[RunProcess]] = {}
    for one in processes:
        if one.of_ray and not one.stopped:
            continue
        if one.child and one.waits:
            continue
        alone = (one.host, one.pid) if one.stopped or one.ended else None
        key = (alone, one.rank is None, one.child, one.working or (one.how, one.name))
        found.setdefault(key, []).append(one)
    groups = [StackGroup(tuple(sorted(members, key=_by_rank))) for members in found.values()]
    ranked = [len(group.members) for group in groups if _is_rank(group)]
    most = max(ranked) if ranked else 0
    return sorted(groups, key=lambda group: _oddness(group, most, len(ranked)))


def missing_ranks(processes: Iterable[RunProcess]) -> list[str]:
    """Return the ranks that other ranks expect but no node has, as `rank 2 of 4`."""
    worlds: dict[tuple[str, int], set[int]] = {}
    for one in processes:
        if one.rank is not None and one.world is not None and not one.child and not one.ended:
            worlds.setdefault((one.group, one.world), set()).add(one.rank)
    lines = []
    for (_, world), ranks in worlds.items():
        missing = [rank for rank in range(min(world, _MOST_PROCESSES)) if rank not in ranks]
        if missing:
            lines.append(f"rank {_ranges(missing)} of {world}")
    return lines


def _is_rank(group: StackGroup) -> bool:
    one = group.members[0]
    return one.rank is not None and not one.child


def _oddness(group: StackGroup, most: int, groups_of_ranks: int) -> tuple[int, int, int]:
    """Return a group's sort key: stopped or ended, differing ranks, other working processes, majority, waiting."""
    one = group.members[0]
    size = len(group.members)
    if one.stopped or one.ended or (not one.stacks and one.rank is not None):
        return (0, 0, size)
    if one.child:
        return (4, 0, size)
    if not _is_rank(group):
        return (4 if one.waits else 2, 0, size)
    if groups_of_ranks > 1:
        # Of two groups alike the one outside of a collective is the odd one: the others wait for it there.
        return (1 if size < most or not one.in_collective else 3, int(one.in_collective), size)
    return (5 if one.waits else 3, 0, size)


def _by_rank(one: RunProcess) -> tuple[int, str, int]:
    return (one.rank if one.rank is not None else -1, one.host, one.pid)


def _waits(stack: Stack) -> bool:
    inner = stack[0]
    return any(inner.file.endswith(name) for name in _IDLE_FILES) or (
        _RAY in inner.file and "site-packages/ray/" in inner.file
    )


def _place(stack: Stack) -> str:
    """Return the position of a stack: its innermost frame outside libraries, and its innermost frame."""
    if not stack:
        return ""
    own = next((frame for frame in stack if not _of_library(frame)), None)
    if own is None or own == stack[0]:
        return stack[0].short
    return f"{own.short} (in {stack[0].short})"


def _of_library(frame: Frame) -> bool:
    return any(word in frame.file for word in _LIBRARIES)


def _ranges(numbers: Sequence[int]) -> str:
    """Format numbers as 0-3, 5, 7-9. A long list is cut."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in parts[:8]]
    return ", ".join(shown) + (f" and {len(parts) - 8} more" if len(parts) > 8 else "")


def _rows(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _number(value: object) -> int | None:
    try:
        return int(str(value)[:9]) if value is not None else None
    except ValueError:
        return None
