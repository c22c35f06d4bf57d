"""Write the output files that are not finished yet, resuming after an interruption, with progress reports."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import npu_rl
from npu_rl.weights.checkpoints.output_folder import require_space
from npu_rl.weights.checkpoints.output_journal import OutputJournal
from npu_rl.weights.checkpoints.unfinished_files import remove_unfinished
from npu_rl.weights.checkpoints.worker_pool import Task, Workers


class WorkProgress:
    """Progress callbacks for a cast, conversion, audit or export. This base class reports nothing."""

    def begin(self, total: int, done: int) -> None:
        """Report how many bytes will be written in total, and how many already exist."""

    def damaged(self, names: Sequence[str]) -> None:
        """Report the finished files that will be rewritten because their content has changed."""

    def advance(self, count: int) -> None:
        """Report the number of bytes written since the last call."""

    def shard(self, name: str, done: int, total: int) -> None:
        """Report that a shard is finished."""


def write_files(
    journal: OutputJournal,
    sizes: Mapping[str, int],
    last: Sequence[str],
    beside: int,
    task: Callable[[str], Task],
    workers: Workers,
    watch: WorkProgress,
) -> int:
    """Have workers write the unfinished files. Returns how many were finished before.

    Args:
        journal: Of the output; it notes each file once it is whole.
        sizes: Bytes of each file.
        last: Other files, which the caller writes next.
        beside: Bytes that they need.
        task: What writes a file, by its name.

    Raises:
        UsageError: If the folder has one of the last files, from somebody else.
        WeightsError, HostError: As of the workers; HostError also if the disk is too small.
    """
    folder, own = journal.folder, (*sizes, *last)
    journal.require_free(last)
    done = journal.whole(sizes)
    watch.damaged(journal.damaged)
    remove_unfinished(folder, own)
    left = [name for name in sizes if name not in done]
    require_space(folder, sum(sizes[name] for name in left) + beside)
    watch.begin(sum(sizes.values()), sum(sizes[name] for name in done))

    def finished(value: Any) -> None:
        journal.add(value)
        watch.shard(value["shard"], len(journal.shards), len(sizes))

    try:
        workers.run([task(name) for name in left], finished, watch.advance)
    finally:
        remove_unfinished(folder, own)  # those of a failed task, and of a host that Ray has lost
    journal.complete(last)
    return len(done)


def made_by() -> dict[str, str]:
    """Return npu-rl's version and the current time, for a report."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"npu_rl": npu_rl.__version__, "date": now.isoformat(timespec="seconds")}
