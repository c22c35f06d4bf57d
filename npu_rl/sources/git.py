"""Objects from git repositories: the narrowest request a server accepts, from the first mirror that works.

The chain per mirror: the wanted objects by id (5.6 MB where full trees are 29 MB) → the commits by id
at depth 1 → the named refs at depth 1 → everything. Stock servers on protocol v2 accept the first step;
older ones and protocol v0 refuse ids that no ref names. Each delivery lands in a quarantine of its own
(parallel shallow fetches into one repository collide on shallow.lock) and becomes a sealed unit.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.errors import SourceError
from npu_rl.git import Git, GitError
from npu_rl.sources.progress import Silent, Watcher
from npu_rl.sources.urls import Rewrites, check_url, has_credentials, hide_credentials
from npu_rl.store import Store, Unit, unit_key

_FETCH = (
    "fetch",
    "--progress",
    "--no-tags",
    "--no-write-fetch-head",
    "--no-recurse-submodules",
    "--no-auto-maintenance",
)
_LOCAL_SERVER = "git -c uploadpack.allowFilter=true -c uploadpack.allowAnySHA1InWant=true upload-pack"

_PASSING = re.compile(
    r"early EOF|unexpected disconnect|hung up|Connection (reset|timed out|refused)|timed out|RPC failed"
    r"|HTTP 5\d\d|error: 5\d\d|Could not resolve host|Temporary failure|index-pack (failed|died)|invalid index-pack"
    r"|unable to connect|fetch-pack: invalid|premature|GnuTLS recv|SSL_read|curl (18|28|56|92)|protocol error: bad line|Network is unreachable",
    re.IGNORECASE,
)
_ABSENT = re.compile(
    r"not found|does not exist|doesn't exist|does not appear to be a git|access denied|Authentication failed"
    r"|could not read Username|Permission denied|Could not read from remote|not exported|HTTP 40[134]|error: 40[134]|repository .* not",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"not our ref|unadvertised object|does not allow request|no such remote ref|couldn't find remote ref"
    r"|not a commit|bad object|upload-pack: not",
    re.IGNORECASE,
)
_PERCENT = re.compile(r"(?P<what>Receiving objects|Resolving deltas):\s+(?P<percent>\d+)%")


@dataclass(frozen=True)
class Network:
    """How to behave towards remotes. Times in seconds."""

    rewrites: Rewrites = field(default_factory=Rewrites)
    stall: float = 60.0
    retries: int = 3
    backoff: float = 1.0
    offline: bool = False

    @staticmethod
    def from_environment(rewrites: Rewrites, *, offline: bool = False) -> Network:
        """`NPU_RL_STALL` (seconds without data), `NPU_RL_RETRIES` and `NPU_RL_BACKOFF` override."""

        def number(name: str, default: float) -> float:
            try:
                return max(0.0, float(os.environ.get(name) or default))
            except ValueError:
                return default

        return Network(
            rewrites=rewrites,
            stall=number("NPU_RL_STALL", 60.0) or 60.0,
            retries=int(number("NPU_RL_RETRIES", 3)),
            backoff=number("NPU_RL_BACKOFF", 1.0),
            offline=offline,
        )


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
    """One mirror as git is to be told of it."""

    url: str
    shown: str
    config: Mapping[str, str]
    options: tuple[str, ...]


def remote(url: str, network: Network, component: str) -> Remote:
    """Apply the rewrites; a URL with credentials goes by an alias so that no file and no `ps` has them."""
    real = network.rewrites.apply(url)
    check_url(real, where=component)
    options = (f"--upload-pack={_LOCAL_SERVER}",) if real.startswith("file://") else ()
    if has_credentials(real):
        alias = f"npu-rl-source://{component}/"
        return Remote(alias, hide_credentials(real), {f"url.{real}.insteadOf": alias}, options)
    return Remote(real, hide_credentials(real), {}, options)


def fetch_from(
    store: Store, request: GitRequest, url: str, network: Network, watcher: Watcher
) -> tuple[Unit, int]:
    """Bring the wanted objects from one mirror into the store; the unit, and the bytes received.

    Raises SourceError with the reason each step of the chain failed.
    """
    target = remote(url, network, request.component)
    watcher.begin(request.component, target.shown)
    return _fetch_from(store, request, target, _steps(request), network, watcher)


def fetch_bundle(
    store: Store, request: GitRequest, path: Path, network: Network, watcher: Watcher
) -> tuple[Unit, int]:
    """As `fetch_from`, out of a bundle file. It needs no network."""
    if not path.is_file():
        raise SourceError(f"{request.component}: there is no bundle {path}")
    watcher.begin(request.component, path.name)
    target = Remote(str(path.absolute()), path.name, {}, ())
    steps = [("from the bundle", ["+refs/*:refs/npu-rl/*"])]
    return _fetch_from(store, request, target, steps, network, watcher)


def _fetch_from(
    store: Store,
    request: GitRequest,
    target: Remote,
    steps: Sequence[tuple[str, list[str]]],
    network: Network,
    watcher: Watcher,
) -> tuple[Unit, int]:
    failures: list[str] = []
    for name, arguments in steps:
        with store.quarantine() as folder:
            repository = Git(folder)
            try:
                transfer(repository, target, arguments, network, request.component, watcher)
            except GitError as error:
                if error.stalled is not None or _ABSENT.search(error.stderr) or _PASSING.search(error.stderr):
                    raise SourceError(f"{request.component}: {target.shown}", why=error.why) from error
                failures.append(f"{name}: {_last_line(error)}")
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
    everything += [f"+{ref}:refs/npu-rl/named/{i}" for i, ref in enumerate(request.refs) if _special(ref)]
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
    """`git fetch` with retries and a growing pause after faults that may pass. Raises GitError."""
    options = [a for a in arguments if a.startswith("--")]
    names = [a for a in arguments if not a.startswith("--")]
    for attempt in range(network.retries + 1):
        try:
            repository.transfer(
                *_FETCH, *target.options, *options, "--", target.url, *names,
                config={**target.config, "http.lowSpeedLimit": "1", "http.lowSpeedTime": str(int(network.stall) or 1)},
                stall=network.stall,
                on_progress=lambda line: _progress(line, component, watcher),
            )  # fmt: skip
            return
        except GitError as error:
            passing = error.stalled is not None or (
                _PASSING.search(error.stderr) and not _REFUSED.search(error.stderr)
            )
            if not passing or attempt == network.retries:
                raise
            pause = network.backoff * 2**attempt
            watcher.note(component, f"{_last_line(error)}; trying again in {pause:g} s")
            time.sleep(pause)


def _progress(line: str, component: str, watcher: Watcher) -> None:
    found = _PERCENT.search(line)
    fraction = int(found["percent"]) / 100 if found and found["what"].startswith("Receiving") else None
    watcher.advance(component, line, fraction)


def _last_line(error: GitError) -> str:
    lines = [line for line in (error.why or error.what).splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:", "remote:"))]
    return (fatal or lines or [error.what])[0]


def missing(repository: Git, ids: Iterable[str]) -> list[str]:
    """Which of the objects are not there."""
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
    for attempt in range(network.retries + 1):
        try:
            done = repository.transfer(
                "ls-remote", *target.options, "--", target.url, *patterns,
                config=target.config, stall=network.stall,
            )  # fmt: skip
            break
        except GitError as error:
            if attempt < network.retries and (error.stalled or _PASSING.search(error.stderr)):
                time.sleep(network.backoff * 2**attempt)
                continue
            raise SourceError(f"{component}: {target.shown} can't be asked", why=error.why) from error
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
