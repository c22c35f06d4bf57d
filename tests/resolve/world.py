"""A small world to lock: upstream repositories, a manifest, and what a set-up elsewhere makes of its lock."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import LockError, NpuRlError
from npu_rl.stack.compose.composed_unit import composed
from npu_rl.stack.git.command import Git, ObjectReader
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.stack.resolve import relock
from npu_rl.stack.sources.deliver import Deliverer
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.progress import Silent
from npu_rl.stack.sources.url_rewriting import load_rewrites
from npu_rl.stack.store import Store
from tests.support import Files, Repo, clean_env

Tree = dict[str, bytes]
PATCH = """\
--- a/pkg/a.py
+++ b/pkg/a.py
@@ -1,2 +1,2 @@
 one
-two
+2
"""


@dataclass
class Composition:
    """What a set-up would lay: `code` and `src` by path, modes, hunk records, and the object database."""

    code: Tree
    src: dict[str, Tree]
    modes: dict[str, str]
    hunks: list[dict[str, Any]]
    git: Git
    commit: str

    def log(self) -> str:
        """The messages of the history, the newest first."""
        return self.git.text("log", "--format=%B", self.commit)


@dataclass
class World:
    """`repo` makes upstreams, `manifest` writes one, `lock` locks it, `compose` does what setup does, elsewhere."""

    root: Path
    env: dict[str, str]
    told: list[str] = field(default_factory=list)
    _count: itertools.count[int] = field(default_factory=itertools.count)

    def repo(self, name: str = "up") -> Repo:
        return Repo(self.root / "upstream" / f"{name}.git")

    def upstream(self, files: Files, message: str = "change", *, name: str = "up") -> Repo:
        """A repository with one commit."""
        repo = self.repo(name)
        repo.commit(files, message)
        return repo

    def write(self, path: str, content: str | bytes) -> Path:
        """A file beside the manifest, or wherever `path` leads from there."""
        place = self.root / "project" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
        return place

    def manifest(self, components: Mapping[str, Any], name: str = "m", **more: Any) -> Path:
        """Write a manifest (JSON is YAML). more: other top-level keys.

        Without npu_rl_runtime, whose files cost more than a test's own; `runtime=None` leaves the key out.
        """
        body = {"schema": 1, "name": name, "title": "A test", "device": "cpu", "components": components}
        body = {key: value for key, value in {"runtime": False, **body, **more}.items() if value is not None}
        return self.write(f"{name}.yaml", json.dumps(body, indent=1))

    def options(self, name: str = "m", output: Path | None = None) -> relock.Options:
        network = Network.from_environment(load_rewrites())
        path = str(self.root / "project" / f"{name}.yaml")
        return relock.Options(path, network, Silent(), self.told.append, 2, output)

    def offline(self) -> relock.Options:
        options = self.options()
        return replace(options, network=replace(options.network, offline=True))

    def lock(self, *update: str, name: str = "m") -> Lock:
        """`npu-rl lock`; what it wrote, read back."""
        made, path = relock.write(self.options(name), list(update))
        read = lock_model.read(path)
        assert read == made
        return read

    def check(self, name: str = "m") -> Lock:
        """`npu-rl lock --check`."""
        return relock.check(self.options(name))[0]

    def locked(self, components: Mapping[str, Any], **more: Any) -> Lock:
        """Write the manifest and lock it."""
        self.manifest(components, **more)
        return self.lock()

    def refused(self, components: Mapping[str, Any], error: type[NpuRlError] = LockError, **more: Any) -> str:
        """The message with which the manifest is refused; an earlier lock is as it was."""
        path = self.root / "project" / "m.lock.json"
        before = path.read_bytes() if path.exists() else None
        self.manifest(components, **more)
        with pytest.raises(error) as caught:
            self.lock()
        assert (path.read_bytes() if path.exists() else None) == before
        return str(caught.value)

    def empty_store(self) -> Store:
        return Store(self.root / f"store-{next(self._count)}")

    def compose(self, lock: Lock, store: Store | None = None) -> Composition:
        """What setup makes of a lock on a machine whose store is empty."""
        store = store or self.empty_store()
        beside = self.root / "project"
        deliverer = Deliverer(store, Network.from_environment(load_rewrites()), Silent())
        units = [unit for delivery in deliverer.deliver(lock, 2).values() for unit in delivery.units]
        done = composed(store, lock, units, beside)
        lent = tuple(unit.objects for unit in [*units, done.unit])
        with store.quarantine() as folder:
            with ObjectReader(Git(folder, alternates=lent)) as reader:
                trees = {
                    root: {path: reader.read(oid)[1] for path, _, oid in files}
                    for root, files in done.facts["files"].items()
                }
        viewer = self.root / f"viewer-{next(self._count)}"
        Repo(viewer)
        return Composition(
            code=trees.pop("code"),
            src={root.removeprefix("src/"): tree for root, tree in trees.items()},
            modes={path: mode for path, mode, _ in done.facts["files"]["code"]},
            hunks=done.facts["hunks"],
            git=Git(viewer, alternates=lent),
            commit=done.commit,
        )


def component(repo: Repo, ref: str = "refs/heads/main", **more: Any) -> dict[str, Any]:
    """An entry of `components`: takes the folder `pkg`, unless `take` says otherwise."""
    entry: dict[str, Any] = {
        "sources": [{"git": repo.url}],
        "ref": ref,
        "take": [{"from": "pkg", "to": "pkg"}],
    }
    return {**entry, **more}


def request(number: int, how: str = "merge", base: str = "refs/heads/main", **more: Any) -> dict[str, Any]:
    """An entry of `merge`."""
    return {"ref": f"refs/pull/{number}/head", "base": base, "how": how, **more}


def pull(up: Repo, number: int, files: Files, message: str = "change", *, at: str = "main") -> str:
    """A pull request of one commit on top of `at`; its head."""
    return up.commit(files, message, on=f"refs/pull/{number}/head", parents=[at])


def takes(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": start, "to": to} for start, to in pairs]


def text(lines: Sequence[object]) -> str:
    """Lines as a file's content."""
    return "".join(f"{line}\n" for line in lines)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    env = clean_env(tmp_path)
    for name in ("NPU_RL_REWRITE", "NPU_RL_STALL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("NPU_RL_STORE", "NPU_RL_CONFIG", "NPU_RL_BACKOFF", "HOME"):
        monkeypatch.setenv(name, env[name])
    monkeypatch.setenv("NPU_RL_RETRIES", "0")
    (tmp_path / "project").mkdir()
    return World(tmp_path, env)
