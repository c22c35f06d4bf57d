"""Objects from git repositories: the narrowest request a server accepts, from one mirror.

The chain: the wanted objects by id (5.6 MB where full trees are 29 MB) → the commits by id at depth 1
→ the named refs at depth 1 → everything. Stock servers on protocol v2 accept the first step; older ones
and protocol v0 refuse ids that no ref names. Each delivery lands in a quarantine of its own (parallel
shallow fetches into one repository collide on shallow.lock) and becomes a sealed unit.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from npu_rl.errors import SourceError, UsageError
from npu_rl.git import Git, GitError, Result, Stopped
from npu_rl.gitenv import Credentials
from npu_rl.sources.faults import Fault, fault_of, gist, may_pass
from npu_rl.sources.progress import Silent, Watcher
from npu_rl.sources.urls import Rewrites, check_url, hide_credentials, split_credentials
from npu_rl.store import Store, Unit, unit_key

_FETCH = (
    "fetch",
    "--progress",
    "--no-tags",
    "--no-write-fetch-head",
    "--no-recurse-submodules",
    "--no-auto-maintenance",
    "--stdin",  # what is wanted: hundreds of ids do not fit every command line
)
_LOCAL_SERVER = "git -c uploadpack.allowFilter=true -c uploadpack.allowAnySHA1InWant=true upload-pack"
_PERCENT = re.compile(r"(?P<what>Receiving objects|Resolving deltas):\s+(?P<percent>\d+)%")

T = TypeVar("T")


@dataclass(frozen=True)
class Network:
    """How to behave towards remotes. Times in seconds. stop: when set, all that goes on ends with Stopped."""

    rewrites: Rewrites = field(default_factory=Rewrites)
    stall: float = 60.0
    retries: int = 3
    backoff: float = 1.0
    offline: bool = False
    stop: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)

    @staticmethod
    def from_environment(rewrites: Rewrites, *, offline: bool = False) -> Network:
        """`NPU_RL_STALL` (seconds without data), `NPU_RL_RETRIES` and `NPU_RL_BACKOFF` (seconds) override.

        Raises UsageError for one that is no number.
        """
        return Network(
            rewrites=rewrites,
            stall=_number("NPU_RL_STALL", 60.0) or 60.0,
            retries=int(_number("NPU_RL_RETRIES", 3)),
            backoff=_number("NPU_RL_BACKOFF", 1.0),
            offline=offline,
        )

    def pause(self, seconds: float) -> None:
        """Wait. Raises Stopped if that is to end."""
        if self.stop.wait(seconds):
            raise Stopped


def _number(name: str, default: float) -> float:
    text = os.environ.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 86400:
        raise UsageError(f"{name} is not a number from 0 to 86400", why=f"It is {text!r}.")
    return value


@dataclass(frozen=True)
class GitRequest:
    """What is wanted of one component's repository.

    wants: ids that must arrive with everything they reach.
    commits, refs: where those objects are known to stand, for servers that won't serve bare ids.
    """

    component: str
    wants: tuple[str, ...]
    commits: tuple[str, ...] = ()
    refs: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return unit_key("objects", self.wants)


@dataclass(frozen=True)
class Remote:
    """One mirror as git is to be told of it. `shown` is for people; `url` holds no credentials either."""

    url: str
    shown: str
    credentials: Credentials | None = None
    options: tuple[str, ...] = ()


def remote(url: str, network: Network, component: str) -> Remote:
    """Apply the rewrites. Raises UsageError if they lead to what git may not be given."""
    real = network.rewrites.apply(url)
    check_url(real, where=component)
    options = (f"--upload-pack={_LOCAL_SERVER}",) if real.startswith("file://") else ()
    plain, credentials = split_credentials(real)
    return Remote(plain, hide_credentials(real), credentials, options)


def fetch_from(
    store: Store, request: GitRequest, url: str, network: Network, watcher: Watcher
) -> tuple[Unit, int]:
    """Bring the wanted objects from one mirror into the store; the unit, and the bytes received.

    Raises SourceError with the reason each step of the chain failed.
    """
    target = remote(url, network, request.component)
    watcher.begin(request.component, target.shown)
    return _fetch_from(store, request, target, _steps(request), network, watcher, hide_credentials(url))


def fetch_bundle(
    store: Store, request: GitRequest, path: Path, network: Network, watcher: Watcher
) -> tuple[Unit, int]:
    """As `fetch_from`, out of a bundle file. It needs no network."""
    if not path.is_file():
        raise SourceError(f"{request.component}: there is no bundle {path}")
    watcher.begin(request.component, path.name)
    target = Remote(str(path.absolute()), path.name)
    steps = [("from the bundle", ["+refs/*:refs/npu-rl/*"])]
    # A file does not get better by trying again.
    once = replace(network, retries=0)
    return _fetch_from(store, request, target, steps, once, watcher, path.name)


def _fetch_from(
    store: Store,
    request: GitRequest,
    target: Remote,
    steps: Sequence[tuple[str, list[str]]],
    network: Network,
    watcher: Watcher,
    source: str,
) -> tuple[Unit, int]:
    failures: list[str] = []
    for name, arguments in steps:
        with store.quarantine() as folder:
            repository = Git(folder)
            try:
                transfer(repository, target, arguments, network, request.component, watcher)
            except GitError as error:
                if fault_of(error) in (Fault.ABSENT, Fault.DOWN):
                    raise SourceError(f"{request.component}: {target.shown}", why=gist(error)) from error
                failures.append(f"{name}: {gist(error)}")
                continue
            lacking = missing(repository, request.wants)
            if lacking:
                failures.append(f"{name}: it served other content ({short(lacking[0])} is not in it)")
                continue
            received = sum(p.stat().st_size for p in (folder / "objects" / "pack").glob("*.pack"))
            if name != "by object id":
                _keep_only(repository, request.wants)
            facts = {
                "component": request.component,
                "wants": list(request.wants),
                "source": source,
                "step": name,
                "bytes": received,
            }
            return store.publish(folder, request.key, facts), received
    raise SourceError(
        f"{request.component}: {target.shown}", why="; ".join(failures) or "nothing was asked for"
    )


def _steps(request: GitRequest) -> list[tuple[str, list[str]]]:
    steps = [("by object id", list(request.wants))]
    if request.commits:
        steps.append(("by commit id", ["--depth=1", *request.commits]))
    if request.refs:
        named = [f"+{ref}:refs/npu-rl/{i}" for i, ref in enumerate(request.refs)]
        steps.append(("by ref", ["--depth=1", *named]))
    everything = ["+refs/heads/*:refs/npu-rl/heads/*", "+refs/tags/*:refs/npu-rl/tags/*"]
    # As patterns: a pull request that this mirror does not have is then no error, and may be merged by now.
    everything += [f"+{ref}*:refs/npu-rl/named/{i}*" for i, ref in enumerate(request.refs) if _special(ref)]
    steps.append(("everything", everything))
    return steps


def _special(ref: str) -> bool:
    return not ref.startswith(("refs/heads/", "refs/tags/"))


def transfer(
    repository: Git,
    target: Remote,
    arguments: Sequence[str],
    network: Network,
    component: str,
    watcher: Watcher,
) -> None:
    """`git fetch` with retries. Raises GitError, HostError (disk full), Stopped."""
    options = [a for a in arguments if a.startswith("--")]
    wanted = "".join(f"{a}\n" for a in arguments if not a.startswith("--")).encode()

    def fetch() -> None:
        repository.transfer(
            *_FETCH, *target.options, *options, "--", target.url,
            config={"http.lowSpeedLimit": "1", "http.lowSpeedTime": str(math.ceil(network.stall))},
            input=wanted,
            credentials=target.credentials,
            stall=network.stall,
            on_progress=lambda line: _progress(line, component, watcher),
            stop=network.stop,
        )  # fmt: skip

    _try(fetch, network, component, watcher)


def _try(action: Callable[[], T], network: Network, component: str, watcher: Watcher) -> T:
    """Try again, after a growing pause, while the fault is one that may pass."""
    for attempt in range(network.retries):
        try:
            return action()
        except GitError as error:
            if not may_pass(error):
                raise
            pause = network.backoff * 2**attempt
            watcher.note(component, f"{gist(error)}; trying again in {pause:g} s")
            network.pause(pause)
    return action()


def _progress(line: str, component: str, watcher: Watcher) -> None:
    found = _PERCENT.search(line)
    fraction = int(found["percent"]) / 100 if found and found["what"].startswith("Receiving") else None
    watcher.advance(component, line, fraction)


def missing(repository: Git, ids: Sequence[str]) -> list[str]:
    """Which of the objects are not there."""
    if not ids:
        return []
    wanted = "\n".join(ids).encode() + b"\n"
    out = repository.run("cat-file", "--batch-check=%(objectname) %(objecttype)", input=wanted).stdout
    return [line.split()[0] for line in out.decode().splitlines() if line.endswith(" missing")]


def _keep_only(repository: Git, wants: Sequence[str]) -> None:
    """Repack so that a unit holds just what was asked for, whichever step delivered it."""
    packs = repository.git_dir / "objects" / "pack"
    old = list(packs.iterdir())
    wanted = "\n".join(wants).encode() + b"\n"
    repository.run("pack-objects", "-q", "--revs", str(packs / "unit"), input=wanted)
    for path in old:
        path.unlink()
    for path in list(packs.iterdir()):
        path.rename(path.with_name(path.name.replace("unit-", "pack-", 1)))
    (repository.git_dir / "shallow").unlink(missing_ok=True)
    loose = repository.git_dir / "objects"
    for path in loose.glob("[0-9a-f][0-9a-f]/*"):
        path.unlink()


def short(oid: str) -> str:
    """An id, abbreviated for a person."""
    return oid[:12]


# -- what only `lock` asks ---------------------------------------------------------------------------


def ls_remote(
    repository: Git, url: str, patterns: Sequence[str], network: Network, component: str
) -> dict[str, str]:
    """Refs of a remote by full name; an annotated tag's own entry and its peeled `^{}` both stand there.

    repository: any; git only needs a place to stand in.
    Raises SourceError when the remote can't be asked.
    """
    target = remote(url, network, component)

    def ask() -> Result:
        return repository.transfer(
            "ls-remote", *target.options, "--", target.url, *patterns,
            config={}, credentials=target.credentials, stall=network.stall, stop=network.stop,
        )  # fmt: skip

    try:
        done = _try(ask, network, component, Silent())
    except GitError as error:
        raise SourceError(f"{component}: {target.shown} can't be asked", why=gist(error)) from error
    refs = {}
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        oid, _, name = line.partition("\t")
        refs[name] = oid
    return refs


def fetch_commits(
    repository: Git, url: str, commits: Sequence[str], network: Network, component: str,
    watcher: Watcher | None = None, *, depth: int | None = None, contents: str = "tree:0",
) -> None:  # fmt: skip
    """Fetch commits with their history (or to `depth`), leaving out what the filter names.

    contents: a git object filter ("tree:0": commits only, "blob:none": commits and trees) or "all".
    A server without filters delivers everything instead; nothing here depends on what it adds.
    Raises GitError.
    """
    target = remote(url, network, component)
    arguments = list(commits)
    if depth is not None:
        arguments.insert(0, f"--depth={depth}")
    if contents != "all":
        arguments.insert(0, f"--filter={contents}")
    transfer(repository, target, arguments, network, component, watcher or Silent())
