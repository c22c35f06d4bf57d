"""The processes of a hanging run, grouped by activity, anomalous groups first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from npu_rl.training.monitor.stack_text import Frame, Stack, parse_stacks

# Files whose functions wait for work, at the inner end of a thread that has none.
_IDLE = (
    *("-packages/ray/", "/threading.py", "/queue.py", "/selectors.py", "/concurrent/futures/", "/asyncio/"),
    *("/multiprocessing/connection.py", "/socketserver.py", "/tqdm/_monitor.py", "/grpc/_channel.py"),
)
_COLLECTIVE = ("/torch/distributed/", "/torch_npu/distributed/")
_LIBRARIES = ("/lib/python3", "/site-packages/", "/dist-packages/", "<frozen", "<string")
# Processes of Ray and of Python, and verl's registry of ranks, which has the variables of rank 0: they train nothing.
_NO_WORK = (
    *("/ray/dashboard/", "/ray/_private/", "/ray/autoscaler/", "gcs_server", "raylet", "ray::IDLE"),
    *("multiprocessing.resource_tracker", "multiprocessing.forkserver", "WorkerGroupRegisterCenter"),
)


@dataclass(frozen=True)
class RunProcess:
    """A process of a run, as found by npu_rl_stack_dump.py.

    Attributes:
        rank: Its rank, of itself or of the process it descends from; None for the trainer and others.
        world: The number of ranks of its group.
        child: Whether it has its rank from its parent.
    """

    host: str
    pid: int
    name: str
    state: str
    rank: int | None
    world: int | None
    group: str
    child: bool
    stacks: tuple[Stack, ...] = field(default=(), repr=False)

    @property
    def title(self) -> str:
        """Display name of the process: `rank 3 (node2, pid 12)`."""
        where = f"{self.host}, pid {self.pid}"
        if self.rank is None:
            short = "driver" if "npu_rl_driver" in self.name else self.name.split(" ")[0].rsplit("/", 1)[-1]
            return f"{short or 'process'} ({where})"
        return f"{'a child of ' if self.child else ''}rank {self.rank} ({where})"

    @property
    def stopped(self) -> bool:
        """Return whether a signal has stopped the process."""
        return self.state in ("T", "t")

    @property
    def ended(self) -> bool:
        """Return whether the process has ended without being reaped by its parent."""
        return self.state == "Z"

    @property
    def is_rank(self) -> bool:
        """Return whether the process is a rank itself."""
        return self.rank is not None and not self.child

    @property
    def working(self) -> Stack:
        """The stack that shows the work: the main thread's, or another's if the main thread only waits."""
        return next((stack for stack in self.stacks if not _waits(stack)), next(iter(self.stacks), ()))

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
        if one.stopped:
            return "stopped (by a signal)"
        if not one.stacks:
            return "no stacks"
        if one.waits and one.working[0].function == "main_loop":
            return f"waits for its next task, in {one.working[0].short}"
        return f"{'waits ' if one.waits else ''}in {_place(one.working)}"

    @property
    def who(self) -> str:
        """The names of the processes, the first few with host and pid."""
        ranks = {one.rank for one in self.members if one.rank is not None and not one.child}
        if len(self.members) == 1 or not ranks:
            shown = ", ".join(one.title for one in self.members[:3])
            return shown + (f" and {len(self.members) - 3} more" if len(self.members) > 3 else "")
        return f"{len(ranks)} ranks: {_ranges(ranks)}"


def read_processes(found: Mapping[str, Any]) -> list[RunProcess]:
    """Return the processes reported by the nodes. Where some have a group, ranks are those of groups."""
    processes: dict[tuple[str, int], RunProcess] = {}  # two nodes of one host see the same ones
    grouped = any(row.get("group") for node in found["nodes"] for row in node["processes"])
    for node in found["nodes"]:
        by_pid = {row["pid"]: row for row in node["processes"]}
        for row in node["processes"]:
            one = _process(row, by_pid.get(row["parent"], {}), node["host"], grouped)
            processes.setdefault((one.host, one.pid), one)
    return list(processes.values())


def _process(row: Mapping[str, Any], parent: Mapping[str, Any], host: str, grouped: bool) -> RunProcess:
    def rank_of(row: Mapping[str, Any]) -> int | None:
        return _number(row.get("rank")) if row.get("group") or not grouped else None

    ranked = parent if row["state"] == "Z" else row  # one that has ended has no variables left
    rank = rank_of(ranked)
    return RunProcess(
        host=host,
        pid=row["pid"],
        name=row["name"],
        state=row["state"],
        rank=rank,
        world=_number(ranked.get("world")),
        group=ranked.get("group") or "",
        child=rank is not None and rank_of(parent) == rank,
        stacks=tuple(parse_stacks(row["text"])),
    )


def group_processes(processes: Iterable[RunProcess]) -> list[StackGroup]:
    """Group the processes by activity, anomalous ones first. Those that train nothing are left out."""
    found: dict[object, list[RunProcess]] = {}
    for one in processes:
        if any(word in one.name for word in _NO_WORK) or (one.child and one.waits):
            continue
        alone = (one.host, one.pid) if one.stopped or one.ended else None
        found.setdefault((alone, one.is_rank, one.child, one.working or one.name), []).append(one)
    groups = [StackGroup(tuple(sorted(members, key=_by_rank))) for members in found.values()]
    of_ranks = [len(group.members) for group in groups if group.members[0].is_rank]
    return sorted(groups, key=lambda group: _oddness(group, of_ranks))


def missing_ranks(processes: Iterable[RunProcess]) -> list[str]:
    """Return the ranks that other ranks expect but no node has, as `rank 2 of 4`."""
    worlds: dict[tuple[str, int], set[int]] = {}
    for one in processes:
        if one.rank is not None and one.world is not None and one.is_rank and not one.ended:
            worlds.setdefault((one.group, one.world), set()).add(one.rank)
    missing = {world: set(range(world[1])) - ranks for world, ranks in worlds.items()}
    return [f"rank {_ranges(ranks)} of {world}" for (_, world), ranks in missing.items() if ranks]


def _oddness(group: StackGroup, of_ranks: Sequence[int]) -> tuple[int, int, int]:
    """Return a sort key: stopped or ended, differing ranks, other working processes, majority, waiting, others."""
    one, size = group.members[0], len(group.members)
    if one.stopped or one.ended or (one.is_rank and not one.stacks):
        return (0, 0, size)
    if not one.is_rank:
        return (6 if not one.stacks else 4 if one.waits or one.child else 2, 0, size)
    if len(of_ranks) > 1:
        # Of two groups alike the one outside of a collective is the odd one: the others wait for it there.
        odd = size < max(of_ranks) or not one.in_collective
        return (1 if odd else 3, int(one.in_collective), size)
    return (5 if one.waits else 3, 0, size)


def _by_rank(one: RunProcess) -> tuple[int, str, int]:
    return (one.rank if one.rank is not None else -1, one.host, one.pid)


def _waits(stack: Stack) -> bool:
    return any(word in stack[0].file for word in _IDLE)


def _place(stack: Stack) -> str:
    """Return the position of a stack: its innermost frame outside libraries, and its innermost frame."""
    own = next((frame for frame in stack if not _of_library(frame)), stack[0])
    return own.short if own == stack[0] else f"{own.short} (in {stack[0].short})"


def _of_library(frame: Frame) -> bool:
    return any(word in frame.file for word in _LIBRARIES)


def _ranges(numbers: Iterable[int]) -> str:
    """Format numbers as 0-3, 5, 7-9. A long list is cut."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in parts[:8]]
    return ", ".join(shown) + (f" and {len(parts) - 8} more" if len(parts) > 8 else "")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
