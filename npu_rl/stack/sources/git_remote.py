"""Remotes of git: settings of the network, credentials, retries, and the two commands that talk to a server."""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from npu_rl.common.environment_variables import BACKOFF, RETRIES, STALL, Variable
from npu_rl.common.errors import SourceError, UsageError
from npu_rl.stack.git.command import Git, Result
from npu_rl.stack.git.environment import Credentials
from npu_rl.stack.git.messages import GitError, GitStopped
from npu_rl.stack.sources.progress import Silent, Watcher
from npu_rl.stack.sources.transfer_errors import is_retryable, main_message
from npu_rl.stack.sources.url_rewriting import Rewrites, check_url, hide_credentials, split_credentials

_FETCH = (
    "fetch",
    "--progress",
    "--no-tags",
    "--no-write-fetch-head",
    "--no-recurse-submodules",
    "--no-auto-maintenance",
    "--stdin",  # the wanted ids: hundreds of them can exceed the limit of a command line
)
_LOCAL_SERVER = "git -c uploadpack.allowFilter=true -c uploadpack.allowAnySHA1InWant=true upload-pack"
_PERCENT = re.compile(r"(?P<what>Receiving objects|Resolving deltas):\s+(?P<percent>\d+)%")

T = TypeVar("T")


@dataclass(frozen=True)
class Network:
    """Settings for remotes, times in seconds; setting `stop` ends all transfers with GitStopped."""

    rewrites: Rewrites = field(default_factory=Rewrites)
    stall: float = 60.0
    retries: int = 3
    backoff: float = 1.0
    offline: bool = False
    stop: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)

    @staticmethod
    def from_environment(rewrites: Rewrites, *, offline: bool = False) -> Network:
        """Return the settings with `NPU_RL_STALL` (seconds without data), `NPU_RL_RETRIES`, `NPU_RL_BACKOFF` (seconds).

        Raises:
            UsageError: For a value that is not a number.
        """
        return Network(
            rewrites=rewrites,
            stall=_number(STALL) or float(STALL.default),
            retries=int(_number(RETRIES)),
            backoff=_number(BACKOFF),
            offline=offline,
        )

    def pause(self, seconds: float) -> None:
        """Wait. Raises GitStopped if `stop` is set."""
        if self.stop.wait(seconds):
            raise GitStopped


def _number(variable: Variable) -> float:
    text = os.environ.get(variable.name) or variable.default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 86400:
        raise UsageError(
            f"Invalid {variable.name}={text!r}: must be a number from 0 to 86400",
            hint=f"export {variable.name}={variable.default}, or unset it.",
        )
    return value


@dataclass(frozen=True)
class Remote:
    """One mirror of a component; neither `url` nor `shown`, which is for messages, contains credentials."""

    url: str
    shown: str
    network: Network = field(repr=False)  # whose rewrites may have passwords
    component: str
    credentials: Credentials | None = None
    options: tuple[str, ...] = ()


def remote(url: str, network: Network, component: str) -> Remote:
    """Apply the rewrites to a URL. Raises UsageError if the result is not a valid git URL."""
    real = network.rewrites.apply(url)
    check_url(real, where=component)
    options = (f"--upload-pack={_LOCAL_SERVER}",) if real.startswith("file://") else ()
    plain, credentials = split_credentials(real)
    return Remote(plain, hide_credentials(real), network, component, credentials, options)


def transfer(repository: Git, target: Remote, arguments: Sequence[str], watcher: Watcher) -> None:
    """`git fetch` with retries. Raises GitError, HostError (disk full), GitStopped."""
    network = target.network
    options = [a for a in arguments if a.startswith("--")]
    wanted = "".join(f"{a}\n" for a in arguments if not a.startswith("--")).encode()

    def fetch() -> None:
        repository.transfer(
            *_FETCH, *target.options, *options, "--", target.url,
            config={"http.lowSpeedLimit": "1", "http.lowSpeedTime": str(math.ceil(network.stall))},
            input=wanted,
            credentials=target.credentials,
            stall=network.stall,
            on_progress=lambda line: _progress(line, target.component, watcher),
            stop=network.stop,
        )  # fmt: skip

    _with_retries(fetch, target, watcher)


def ls_remote(
    repository: Git, url: str, refs: Collection[str], network: Network, component: str
) -> dict[str, str]:
    """Return the commit ids of those refs that a remote has, by full name.

    Args:
        repository: Any repository, since git needs one to run in.

    Raises:
        SourceError: If the remote can't be read.
    """
    target = remote(url, network, component)
    patterns = [pattern for ref in refs for pattern in (ref, f"{ref}^{{}}")]

    def ask() -> Result:
        return repository.transfer(
            "ls-remote", *target.options, "--", target.url, *patterns,
            config={}, credentials=target.credentials, stall=network.stall, stop=network.stop,
        )  # fmt: skip

    try:
        done = _with_retries(ask, target, Silent())
    except GitError as error:
        raise SourceError(f"{component}: {target.shown} can't be read", why=main_message(error)) from error
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    found = {name: oid for oid, _, name in (line.partition("\t") for line in lines)}
    return {ref: found.get(f"{ref}^{{}}", found[ref]) for ref in refs if ref in found}


def _with_retries(action: Callable[[], T], target: Remote, watcher: Watcher) -> T:
    """Retry transient failures, with growing pauses."""
    network = target.network
    for attempt in range(network.retries):
        try:
            return action()
        except GitError as error:
            if not is_retryable(error):
                raise
            pause = network.backoff * 2**attempt
            watcher.note(target.component, f"{main_message(error)}; retrying in {pause:g} s")
            network.pause(pause)
    return action()


def _progress(line: str, component: str, watcher: Watcher) -> None:
    found = _PERCENT.search(line)
    fraction = int(found["percent"]) / 100 if found and found["what"].startswith("Receiving") else None
    watcher.advance(component, line, fraction)
