"""Fetching of objects from git repositories, with the narrowest request that a server accepts.

The chain: the wanted objects by id (5.6 MB where full trees are 29 MB) → the commits by id at depth 1
→ the named refs at depth 1 → everything. Stock servers on protocol v2 accept the first step; older ones
and protocol v0 refuse ids that no ref names. Each delivery lands in a quarantine of its own (parallel
shallow fetches into one repository collide on shallow.lock) and becomes a sealed unit. `lock` fetches
commits and their history by the same chain.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.disk import remove_tree
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.git.objects import short
from npu_rl.stack.sources.git_remote import Network, Remote, remote, transfer
from npu_rl.stack.sources.progress import Watcher
from npu_rl.stack.sources.transfer_errors import Fault, NotDelivered, fault_of, main_message
from npu_rl.stack.sources.url_rewriting import hide_credentials
from npu_rl.stack.store import Store, Unit, unit_key


@dataclass(frozen=True)
class GitRequest:
    """A request for objects of one component's repository.

    Attributes:
        wants: Ids to fetch, with everything that is reachable from them.
        commits, refs: Commits and refs that contain them, for servers that do not serve ids.
    """

    component: str
    wants: tuple[str, ...]
    commits: tuple[str, ...] = ()
    refs: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The key of the unit with these objects."""
        return unit_key("objects", self.wants)


def fetch_from(
    store: Store, request: GitRequest, url: str, network: Network, watcher: Watcher
) -> tuple[Unit, int]:
    """Fetch the wanted objects from one mirror into the store; return the unit and the bytes received.

    Raises:
        NotDelivered: All steps of the chain failed; it has the reason of each.
    """
    target = remote(url, network, request.component)
    watcher.begin(request.component, target.shown)
    return _fetch_from(store, request, target, _steps(request), watcher, hide_credentials(url))


def _fetch_from(
    store: Store,
    request: GitRequest,
    target: Remote,
    steps: Sequence[FetchStep],
    watcher: Watcher,
    source: str,
) -> tuple[Unit, int]:
    delivery = _first_that_delivers(steps, request.wants, target, watcher, store.quarantine)
    with delivery as (step, repository):
        packs = repository.git_dir / "objects" / "pack"
        received = sum(p.stat().st_size for p in packs.glob("*.pack"))
        if step != BY_OBJECT:
            _keep_only(repository, request.wants)
        facts = {
            "component": request.component,
            "wants": list(request.wants),
            "source": source,
            "step": step,
            "bytes": received,
        }
        return store.publish(repository.git_dir, request.key, facts), received


@dataclass(frozen=True)
class FetchStep:
    """One form of the request.

    Attributes:
        arguments: Options and refspecs of `git fetch`.
        refs: The refs that are fetched as refs/npu-rl/0, 1, ...
        decides: Whether the chain ends if the server reports a missing id, since a wider step would only transfer more.
    """

    name: str
    arguments: tuple[str, ...]
    refs: tuple[str, ...] = ()
    decides: bool = False


BY_OBJECT = "by object id"
_NOT_OUR_REF = "not our ref"


@contextlib.contextmanager
def _first_that_delivers(
    steps: Sequence[FetchStep],
    wants: Sequence[str],
    target: Remote,
    watcher: Watcher,
    fresh: Callable[[], contextlib.AbstractContextManager[Path]],
) -> Iterator[tuple[str, Git]]:
    """Return the first step that delivers all wanted objects, and its repository.

    Args:
        fresh: Creates a temporary empty repository for one step.

    Raises:
        NotDelivered: All steps failed; it has the reason of each.
    """
    failures: list[str] = []
    faults: list[Fault] = []
    for step in steps:
        with fresh() as folder:
            repository = Git(folder)
            try:
                transfer(repository, target, step.arguments, watcher)
            except GitError as error:
                fault = fault_of(error)
                if fault in (Fault.ABSENT, Fault.DOWN):
                    raise NotDelivered(target.component, target.shown, main_message(error), fault) from error
                failures.append(f"{step.name}: {main_message(error)}")
                faults.append(Fault.LACKING if fault is Fault.REFUSED else fault)
                if step.decides and _NOT_OUR_REF in error.stderr:
                    break
                continue
            lacking = missing(repository, wants)
            if not lacking:
                yield step.name, repository
                return
            failures.append(
                f"{step.name}: the server sent other objects "
                f"({short(lacking[0])} is missing{_named_there(repository, step)})"
            )
            faults.append(Fault.LACKING)
    main_fault = next((fault for fault in faults if fault is not Fault.LACKING), Fault.LACKING)
    reasons = "; ".join(failures) or "nothing was requested"
    raise NotDelivered(target.component, target.shown, reasons, main_fault)


def _named_there(repository: Git, step: FetchStep) -> str:
    """Return a step's refs with their commit ids on this mirror, for a message."""
    listing = repository.text("for-each-ref", "--format=%(refname) %(objectname)", "refs/npu-rl")
    there = dict(line.split() for line in listing.splitlines())
    found = {ref: there.get(f"refs/npu-rl/{i}") for i, ref in enumerate(step.refs)}
    return "".join(f"; {ref} is at {short(oid)} there" for ref, oid in found.items() if oid)


def _steps(request: GitRequest) -> list[FetchStep]:
    steps = [FetchStep(BY_OBJECT, request.wants)]
    if request.commits:
        steps.append(FetchStep("by commit id", ("--depth=1", *request.commits)))
    if request.refs:
        steps.append(_by_ref(request.refs, "--depth=1"))
    return [*steps, _everything(request.refs)]


def _by_ref(refs: Sequence[str], *options: str) -> FetchStep:
    named = (f"+{ref}:refs/npu-rl/{i}" for i, ref in enumerate(refs))
    return FetchStep("by ref", (*options, *named), tuple(refs))


def _everything(refs: Sequence[str], *options: str) -> FetchStep:
    # As patterns: a pull request that this mirror does not have is then no error, and may be merged by now.
    special = (f"+{ref}*:refs/npu-rl/named/{i}*" for i, ref in enumerate(refs) if _is_other_ref(ref))
    branches_and_tags = ("+refs/heads/*:refs/npu-rl/heads/*", "+refs/tags/*:refs/npu-rl/tags/*")
    return FetchStep("everything", (*options, *branches_and_tags, *special))


def _is_other_ref(ref: str) -> bool:
    return not ref.startswith(("refs/heads/", "refs/tags/"))


def missing(repository: Git, ids: Sequence[str]) -> list[str]:
    """Return the objects that are missing."""
    kinds = repository.batch_check("objecttype", ids) if ids else {}
    return [oid for oid, kind in kinds.items() if kind == "missing"]


def _keep_only(repository: Git, wants: Sequence[str]) -> None:
    """Repack so that the unit has only the requested objects, whichever step delivered them."""
    packs = repository.git_dir / "objects" / "pack"
    old = list(packs.iterdir())
    wanted = "\n".join(wants).encode() + b"\n"
    repository.run("pack-objects", "-q", "--revs", str(packs / "unit"), input=wanted)
    for path in old:
        path.unlink()
    for path in list(packs.iterdir()):
        path.rename(path.with_name(path.name.replace("unit-", "pack-", 1)))
    (repository.git_dir / "shallow").unlink(missing_ok=True)
    for path in packs.parent.glob("[0-9a-f][0-9a-f]/*"):
        path.unlink()


def fetch_commits(
    repository: Git, url: str, commits: Sequence[str], network: Network, component: str,
    watcher: Watcher, *, depth: int | None = None, contents: str, refs: Sequence[str] = (),
) -> None:  # fmt: skip
    """Fetch commits with their history (or to `depth`), without the objects that the filter excludes.

    A server without filters sends all objects instead, which has no effect on the result.

    Raises NotDelivered.

    Args:
        contents: A git object filter ("tree:0": commits only, "blob:none": commits and trees).
        refs: Refs that contain the commits, for servers that do not serve ids.
    """
    target = remote(url, network, component)
    filtered = f"--filter={contents}"
    cut = () if depth is None else (f"--depth={depth}",)
    steps = [FetchStep("by commit id", (filtered, *cut, *commits), decides=True)]
    if refs:
        steps.append(_by_ref(refs, filtered, *cut))
    steps.append(_everything(refs, filtered))

    @contextlib.contextmanager
    def fresh() -> Iterator[Path]:
        folder = repository.git_dir / f"step-{os.urandom(6).hex()}"
        init_bare(folder)
        try:
            yield folder
        finally:
            remove_tree(folder)

    with _first_that_delivers(steps, commits, target, watcher, fresh) as (_, delivered):
        _adopt(repository, delivered)


def _adopt(repository: Git, delivered: Git) -> None:
    """Move the objects that a step fetched into an empty repository."""
    objects = delivered.git_dir / "objects"
    for path in [p for p in objects.rglob("*") if p.is_file() and p.parent.name != "info"]:
        target = repository.git_dir / "objects" / path.relative_to(objects)
        target.parent.mkdir(exist_ok=True)
        path.rename(target)
    shallow = delivered.git_dir / "shallow"
    if shallow.exists():
        shallow.rename(repository.git_dir / "shallow")
