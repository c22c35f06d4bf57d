"""An upstream with everything the fallback chain meets, and somebody who writes down what a source tells."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.stack.git.command import Git
from npu_rl.stack.sources.git_fetch import GitRequest
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.url_rewriting import Rewrites
from npu_rl.stack.store import Store, Unit
from tests.support import Repo, script

NOISE = random.Random(7).randbytes(200_000)  # does not compress: a pack that can break in the middle


@dataclass(frozen=True)
class Upstream:
    """`served/up.git`: main is first - middle - tip, and pull request 7 starts from `middle`."""

    served: Path
    repo: Repo
    first: str
    middle: str
    tip: str
    head: str

    def request(self, commit: str, *, refs: tuple[str, ...] = ("refs/heads/main",)) -> GitRequest:
        """The package folder as it is at a commit."""
        return GitRequest("up", (self.repo.tree(commit, "package"),), (commit,), refs)


def make_upstream(served: Path) -> Upstream:
    repo = Repo(served / "up.git")
    first = repo.commit({"package/a.py": "one\n", "package/noise": NOISE, "docs/x": "unwanted\n"})
    middle = repo.commit({"package/a.py": "two\n", "package/deep/b.py": "b\n"})
    tip = repo.commit({"package/a.py": "three\n"})
    head = repo.commit({"package/a.py": "request\n"}, on="refs/pull/7/head", parents=[middle])
    repo.tag("v1", first, annotated=True)
    return Upstream(served, repo, first, middle, tip, head)


@dataclass
class Notes:
    """A watcher that remembers."""

    begun: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    fractions: list[float] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, component: str, source: str) -> None:
        with self._lock:
            self.begun.append(f"{component}: {source}")

    def advance(self, component: str, text: str, fraction: float | None) -> None:
        with self._lock:
            self.lines.append(text)
            if fraction is not None:
                self.fractions.append(fraction)

    def note(self, component: str, message: str) -> None:
        with self._lock:
            self.notes.append(f"{component}: {message}")

    def end(self, component: str, size: int) -> None:
        with self._lock:
            self.ended[component] = size


def network(*rules: tuple[str, str], stall: float = 30.0, retries: int = 0, offline: bool = False) -> Network:
    """A network without pauses."""
    return Network(Rewrites(rules), stall=stall, retries=retries, backoff=0, offline=offline)


def objects_of(unit: Unit, scratch: Path) -> dict[str, str]:
    """Every object of a unit and its kind."""
    here = Git(scratch, alternates=(unit.objects,))
    listing = here.text("cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)")
    return dict(line.split() for line in listing.splitlines())


def reached(repo: Repo, *roots: str) -> set[str]:
    """The ids of the objects and all they reach (trees and blobs)."""
    return {line.split()[0] for line in repo.git("rev-list", "--objects", *roots).splitlines()}


def logging_git(folder: Path) -> Path:
    """A git in a folder for PATH, which writes down what it was called with; the file it writes to."""
    folder.mkdir()
    script(folder / "git", f'echo "$*" >>{folder}/log\nexec {shutil.which("git")} "$@"')
    return folder / "log"


def command_lines() -> list[str]:
    """Those of every process of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    return found


def left_behind(store: Store) -> list[str]:
    return sorted(path.name for path in store.temporary.iterdir())
