"""Delivery of a lock's objects, in parallel: each component from the first of its sources that has them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from npu_rl.common.errors import SourceError
from npu_rl.stack.lock.lock_model import Lock, LockedComponent, LockedSource
from npu_rl.stack.sources import git_fetch as git_source
from npu_rl.stack.sources.git_fetch import GitRequest
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.progress import Silent, Watcher
from npu_rl.stack.sources.transfer_errors import Fault, NotDelivered, advice
from npu_rl.stack.sources.url_rewriting import hide_credentials
from npu_rl.stack.store import Store, Unit

T = TypeVar("T")


@dataclass(frozen=True)
class Delivery:
    """The delivered objects of a component: units, source, and bytes received over the network."""

    units: tuple[Unit, ...]
    source: str
    received: int


@dataclass(frozen=True)
class WantedUnit:
    """One unit that a component needs: the request, and where its objects may come from.

    Attributes:
        component: The component whose own objects these are; None for those of a submodule.
    """

    request: GitRequest
    sources: tuple[LockedSource, ...]
    component: LockedComponent | None = None


def wanted_units(name: str, component: LockedComponent) -> Iterator[WantedUnit]:
    """Yield the units that a component needs: its own, then one for each submodule."""
    if component.wanted_objects():
        merges = component.merges
        commits = [component.pin, *(m.head for m in merges), *(m.merge_base for m in merges)]
        refs = [component.ref, *(m.ref for m in merges)]
        request = GitRequest(
            name,
            component.wanted_objects(),
            tuple(dict.fromkeys(c for c in commits if c)),
            tuple(dict.fromkeys(r for r in refs if r and r.startswith("refs/"))),
        )
        yield WantedUnit(request, component.sources, component)
    for module in component.submodules:
        request = GitRequest(f"{name}/{module.path}", (module.root,), (module.pin,))
        yield WantedUnit(request, (LockedSource(git=module.git),))


@dataclass(frozen=True)
class Deliverer:
    """Fetches components."""

    store: Store
    network: Network
    watcher: Watcher = Silent()  # noqa: RUF009  (stateless)

    def deliver(self, lock: Lock, jobs: int) -> dict[str, Delivery]:
        """Fetch all objects of a lock in parallel. Raises the first error after the other tasks have stopped."""
        stop = threading.Event()
        stoppable = replace(self, network=replace(self.network, stop=stop))
        tasks = {name: partial(stoppable.component, name, c) for name, c in lock.components.items()}
        return in_parallel(tasks, jobs, stop)

    def component(self, name: str, component: LockedComponent) -> Delivery:
        """Fetch one component, submodules included."""
        units: list[Unit] = []
        source, received = "", 0
        for wanted in wanted_units(name, component):
            part = self.request(wanted.request, wanted.sources, wanted.component)
            units += part.units
            received += part.received
            source = part.source if wanted.component is not None else source
        self.watcher.end(name, received)
        return Delivery(tuple(units), source, received)

    def request(
        self, request: GitRequest, sources: tuple[LockedSource, ...], component: LockedComponent | None
    ) -> Delivery:
        """Fetch the wanted objects from the first source that has them (component: needed for sdists).

        Raises:
            SourceError: No source has the objects; it lists every source and why it failed.
        """
        name = request.component
        unit = self.store.find(request.key)
        if unit is not None:
            return Delivery((unit,), str(unit.facts().get("source", "")), 0)
        if self.network.offline:
            raise SourceError(
                f"{name} is not in the local store",
                why="--offline does not allow fetching it.",
                hint="Run the same command once without --offline.",
            )
        reasons: list[str] = []
        hints: list[str] = []
        faults: list[Fault] = []
        for source in sources:
            try:
                unit, received = self._deliver_from(source, request, component)
                return Delivery((unit,), source.shown(), received)
            except SourceError as error:
                reason = f"{source.shown()}: {error.why or error.what}"
                if isinstance(error, NotDelivered):
                    faults.append(error.fault)
                    reason = error.reason(source.shown())
                elif error.hint:
                    hints.append(error.hint)
                reason = hide_credentials(reason)
                reasons.append(reason)
                if source is not sources[-1]:
                    self.watcher.note(name, f"{reason.splitlines()[0]}; trying the next source")
        raise SourceError(
            f"No source delivered {name}",
            why="\n".join(reasons),
            hint="\n".join(dict.fromkeys([*advice(faults).splitlines(), *hints])) or advice([Fault.DOWN]),
        )

    def _deliver_from(
        self, source: LockedSource, request: GitRequest, component: LockedComponent | None
    ) -> tuple[Unit, int]:
        if source.git:
            return git_source.fetch_from(self.store, request, source.git, self.network, self.watcher)
        assert component is not None  # a submodule's only source is git
        from npu_rl.stack.sources.sdist_unit import fetch_sdist

        return fetch_sdist(self.store, request, source, component, self.network, self.watcher)


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
