"""Parallel tasks that all succeed or all stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")


def in_parallel(tasks: Mapping[str, Callable[[], T]], jobs: int, stop: threading.Event) -> dict[str, T]:
    """Run tasks in threads and return their results in order.

    If one raises, or the user interrupts, `stop` is set, and the others must end. The first error is raised after all
    have ended.
    """
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        futures: dict[str, Future[T]] = {name: pool.submit(task) for name, task in tasks.items()}
        failed: list[BaseException] = []
        succeeded = False
        try:
            done, waiting = wait(futures.values(), return_when=FIRST_EXCEPTION)
            failed = [error for future in done if (error := future.exception()) is not None]
            succeeded = not failed and not waiting
        finally:
            if not succeeded:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
    if failed:
        raise failed[0]
    return {name: future.result() for name, future in futures.items()}
