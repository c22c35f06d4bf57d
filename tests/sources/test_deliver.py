"""Delivery: sources in order, the first error of many, nothing left behind, and the command as people run it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from npu_rl.common.errors import SourceError
from npu_rl.stack.git.command import Git
from npu_rl.stack.lock.lock_model import Lock, LockedComponent, LockedSource, LockedSubmodule, LockedTake
from npu_rl.stack.sources.deliver import Deliverer, Delivery
from npu_rl.stack.store import Store
from tests.sources.archives import sdist
from tests.sources.mirrors import (
    Notes,
    Upstream,
    command_lines,
    left_behind,
    logging_git,
    network,
    objects_of,
    reached,
)
from tests.sources.package_index import PackageIndex
from tests.support import Repo, clean_env, http_git, ok, run_cli, serve

DEAD = "file:///nowhere/up.git"


def component(upstream: Upstream, *sources: LockedSource, commit: str = "") -> LockedComponent:
    """The package folder at a commit (by default the tip)."""
    commit = commit or upstream.tip
    repo = upstream.repo
    take = LockedTake("package", "package", "40000", repo.tree(commit, "package"))
    taken = repo.git("mktree", input=f"040000 tree {take.id}\tpackage\n".encode())
    return LockedComponent(sources, (take,), taken, taken, ref="refs/heads/main", pin=commit)


def lock_of(**components: LockedComponent) -> Lock:
    return Lock(1, "m", "t", "cpu", "", {}, components, "", "")


def release(upstream: Upstream, **extra: bytes) -> bytes:
    """The package as its sdist would have it at the tip, with a generated file more."""
    names = upstream.repo.git("ls-tree", "-r", "--name-only", "main", "package").splitlines()
    here = Git(upstream.repo.path)
    files = {name: here.run("cat-file", "blob", f"main:{name}").stdout for name in names}
    files |= {"PKG-INFO": b"Name: up\n", "package/_version.py": b"version = 1\n", **extra}
    return sdist("up", "1.0", files)


PYPI = LockedSource(pypi="up==1.0", drop=("package/_version.py",))


@dataclasses.dataclass
class Delivering:
    """Delivers the component of an upstream from some sources, and keeps what a watcher is told."""

    upstream: Upstream
    store: Store
    folder: Path
    notes: Notes = dataclasses.field(default_factory=Notes)

    @property
    def here(self) -> LockedSource:
        return LockedSource(git=self.upstream.repo.url)

    def all(self, lock: Lock, jobs: int = 4, **options: object) -> dict[str, Delivery]:
        here = network(**options)  # type: ignore[arg-type]
        return Deliverer(self.store, here, self.notes).deliver(lock, jobs)

    def __call__(self, *sources: LockedSource, **options: object) -> Delivery:
        return self.all(lock_of(up=component(self.upstream, *sources)), **options)["up"]


@pytest.fixture
def deliver(upstream: Upstream, store: Store, tmp_path: Path) -> Delivering:
    return Delivering(upstream, store, tmp_path)


GONE = LockedSource(git=DEAD)


# -- one after the other -------------------------------------------------------------------------------


def test_a_mirror_that_is_gone_or_has_other_content_is_followed_by_the_next(
    deliver: Delivering, tmp_path: Path
) -> None:
    liar = Repo(tmp_path / "liar.git")
    liar.commit({"package/a.py": "something else\n"})
    delivery = deliver(GONE, LockedSource(git=liar.url), deliver.here)
    assert delivery.source == deliver.here.git and delivery.received > 0
    assert deliver.notes.ended == {"up": delivery.received}
    gone, other = deliver.notes.notes
    assert gone.startswith(f"up: {DEAD}: fatal: ") and gone.endswith("; trying the next source")
    assert "the server sent other objects" in other


def test_git_and_pypi_in_the_order_of_the_lock(
    deliver: Delivering, scratch: Path, index: PackageIndex, tmp_path: Path
) -> None:
    """Nothing on the index; a release with a file more; the right one, first or after git."""
    assert deliver(PYPI, deliver.here).source == deliver.here.git
    assert index.requests == ["/simple/up/"]
    release_ = index.add("up", "up-1.0.tar.gz", release(deliver.upstream, **{"package/more.py": b"evil\n"}))
    deliver.store = Store(tmp_path / "second")
    assert deliver(PYPI, deliver.here).source == deliver.here.git
    assert f"where {component(deliver.upstream, PYPI).tree[:12]} is locked" in deliver.notes.notes[-1]
    release_.data = release(deliver.upstream)
    deliver.store, deliver.notes = Store(tmp_path / "third"), Notes()
    assert deliver(PYPI, GONE).source == "up==1.0"
    assert (deliver.notes.begun, deliver.notes.notes) == (["up: up==1.0"], [])
    deliver.store = Store(tmp_path / "fourth")
    delivery = deliver(GONE, PYPI)
    wants = component(deliver.upstream, GONE, PYPI).wanted_objects()
    assert reached(deliver.upstream.repo, *wants) <= set(objects_of(delivery.units[0], scratch))


@pytest.mark.usefixtures("index")
def test_if_no_source_delivers_each_has_its_reason(deliver: Delivering) -> None:
    with pytest.raises(SourceError, match="No source delivered up") as caught:
        deliver(GONE, PYPI)
    first, second = (caught.value.why or "").splitlines()[:2]
    assert first.startswith(DEAD) and second.startswith("up==1.0: ")
    assert "--rewrite" in (caught.value.hint or "")


# -- the store -----------------------------------------------------------------------------------------


def test_what_is_in_the_store_is_not_fetched(deliver: Delivering) -> None:
    first = deliver(deliver.here)
    deliver.notes = Notes()
    again = deliver(GONE, offline=True)
    assert (again.units, again.source, again.received) == (first.units, deliver.here.git, 0)
    assert (deliver.notes.begun, deliver.notes.ended) == ([], {"up": 0})


# -- several at once -----------------------------------------------------------------------------------


def test_the_first_error_stops_the_others(deliver: Delivering) -> None:
    upstream = deliver.upstream
    with (
        http_git(upstream.served, stall_after=50_000) as silent,
        http_git(upstream.served, status=404) as gone,
    ):
        busy = threading.Event()
        silent.spy = busy.set
        gone.failures = 1000
        gone.spy = lambda: busy.wait(20)
        lock = lock_of(
            slow=component(upstream, LockedSource(git=silent.url("up.git"))),
            broken=component(upstream, LockedSource(git=gone.url("up.git")), commit=upstream.first),
        )
        started = time.monotonic()
        with pytest.raises(SourceError, match="No source delivered broken"):
            deliver.all(lock, 2, stall=60.0)
        assert time.monotonic() - started < 15
    assert list(deliver.store.units.iterdir()) == []


# -- submodules ----------------------------------------------------------------------------------------


def test_submodules_come_from_their_own_repositories(
    deliver: Delivering, scratch: Path, tmp_path: Path
) -> None:
    other = Repo(tmp_path / "module.git")
    pin = other.commit({"m.py": "m\n"})
    module = LockedSubmodule("package/module", other.url, pin, other.tree(), ())
    whole = dataclasses.replace(component(deliver.upstream, deliver.here), submodules=(module,))
    done = deliver.all(lock_of(up=whole))["up"]
    assert len(done.units) == 2
    assert done.received == sum(unit.size() for unit in done.units)
    assert reached(other, other.tree()) <= set(objects_of(done.units[1], scratch))
    broken = dataclasses.replace(whole, submodules=(dataclasses.replace(module, git=DEAD, root="1" * 40),))
    with pytest.raises(SourceError, match="No source delivered up/package/module"):
        deliver.all(lock_of(up=broken))


# -- the command ---------------------------------------------------------------------------------------

MANIFEST = """\
schema: 1
name: small
title: One folder of one repository
device: cpu
components:
  up:
    sources: [{git: https://upstream.invalid/up.git}]
    ref: refs/heads/main
    take: [{from: package, to: package}]
"""


@dataclasses.dataclass(frozen=True)
class Site:
    """A manifest, its lock, and an environment in which only NPU_RL_REWRITE leads anywhere."""

    folder: Path
    env: dict[str, str]

    @property
    def manifest(self) -> Path:
        return self.folder / "small.yaml"

    def run(self, *args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        return run_cli(args, {**self.env, **env}, self.folder)

    def setup(self, name: str, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run("setup", "--manifest", self.manifest, "--workspace", self.folder / name, *more, **env)

    def holding(self, secret: str) -> list[str]:
        """Files below the folder that hold the secret."""
        needle = secret.encode()
        files = (p for p in self.folder.rglob("*") if p.is_file() and not p.is_symlink())
        return [str(p.relative_to(self.folder)) for p in files if needle in p.read_bytes()]


@pytest.fixture(scope="module")
def locked(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the manifest and its lock."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "small.yaml").write_text(MANIFEST)
    site = Site(folder, clean_env(folder))
    ok(site.run("lock", "--manifest", site.manifest, NPU_RL_REWRITE=_rule(f"{upstream.served}/")))
    return folder


@pytest.fixture
def site(locked: Path, tmp_path: Path) -> Site:
    for name in ("small.yaml", "small.lock.json"):
        shutil.copy(locked / name, tmp_path)
    return Site(tmp_path, clean_env(tmp_path))


def _rule(target: str) -> str:
    return f"https://upstream.invalid/={target}"


def test_setup_through_each_kind_of_rewrite(site: Site, upstream: Upstream) -> None:
    with serve(upstream.served) as daemon:
        ok(site.setup("w1", "--rewrite", _rule(daemon.url("")), NPU_RL_REWRITE=_rule("/nowhere/")))
    config = site.folder / "c.yaml"
    config.write_text(f"rewrite: {{'https://upstream.invalid/': '{upstream.served}/'}}\n")
    other = {"NPU_RL_CONFIG": str(config), "NPU_RL_STORE": str(site.folder / "s2")}
    assert site.setup("w2", **other).returncode == 0
    trees = [
        json.loads(site.run("status", "-w", site.folder / w, "--json").stdout)["lock"]["tree"]
        for w in ("w1", "w2")
    ]
    assert trees[0] == trees[1]
    assert (site.folder / "w1/code/package/a.py").read_text() == "three\n"


def test_a_token_is_used_and_found_nowhere_afterwards(site: Site, upstream: Upstream, tmp_path: Path) -> None:
    """Not in the store, the workspace, HOME, tmp or any output, nor on a command line of git."""
    token = "t0ken-s3cret"
    log = logging_git(tmp_path / "bin")
    (tmp_path / "home" / ".gitconfig").write_text("[credential]\n\thelper = store\n")
    path = f"{tmp_path}/bin:{site.env['PATH']}"
    seen: list[str] = []
    with http_git(upstream.served, auth=f"bot:{token}") as http:
        http.spy = lambda: seen.extend(command_lines())
        rule = _rule(http.url("", f"bot:{token}"))
        good = site.setup("w", NPU_RL_REWRITE=rule, PATH=path)
        lock = site.run(
            "lock", "-m", site.manifest, "-o", tmp_path / "l.json", NPU_RL_REWRITE=rule, PATH=path
        )
        http.auth = "bot:other"
        store = {"NPU_RL_STORE": str(tmp_path / "s2")}
        refused = site.setup("w2", NPU_RL_REWRITE=rule, PATH=path, **store)
        http.auth = None
        http.status, http.failures = 404, 1000
        gone = site.setup("w3", NPU_RL_REWRITE=rule, PATH=path, **store)
        bad = site.setup("w4", NPU_RL_REWRITE=_rule(f"https://bot:{token}/x@host/"), PATH=path, **store)
    assert (good.returncode, lock.returncode) == (0, 0), good.stderr + lock.stderr
    assert (refused.returncode, gone.returncode, bad.returncode) == (1, 1, 2)
    assert "Authentication failed" in refused.stderr
    assert "not found" in gone.stderr
    for done in (good, lock, refused, gone, bad):
        assert token not in done.stdout + done.stderr
    assert "fetch" in log.read_text()
    assert site.holding(token) == []
    assert site.holding("Ym90OnQwa2VuLXMzY3JldA") == []  # as base64
    assert seen
    assert not [line for line in seen if token in line]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupt_ends_all_at_once_and_leaves_nothing(
    site: Site, upstream: Upstream, number: signal.Signals
) -> None:
    """Ctrl-C, say, while a server stalls: git runs in a session of its own and must be told."""
    with http_git(upstream.served, stall_after=0) as http:
        asked = threading.Event()
        http.spy = asked.set
        env = {**site.env, "NPU_RL_REWRITE": _rule(http.url(""))}
        command = [sys.executable, *["-m", "npu_rl", "setup", "-m", "small.yaml", "-w", "w"]]
        with subprocess.Popen(
            command, env=env, cwd=site.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert asked.wait(30)
            started = time.monotonic()
            process.send_signal(number)
            _, errors = process.communicate(timeout=30)
        assert time.monotonic() - started < 10
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    store = Store(site.folder / "store")
    assert left_behind(store) == []
    assert not [p for p in Path("/proc").glob("[0-9]*/cwd") if _target(p).startswith(str(site.folder))]
    assert not (site.folder / "w" / "code").exists()


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
