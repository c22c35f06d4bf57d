"""Mutated inputs of every kind: npu-rl's own error or success, in bounded memory and time, and nothing else."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import shutil
import ssl
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.bundled import data_root
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.git.objects import EMPTY_TREE, FILE, Entry
from npu_rl.stack.lock import lock_model
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.pip_config import PipSettings
from npu_rl.stack.sources.progress import Silent
from npu_rl.stack.store import Store
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.bundles.made import make_bundle, members_of
from tests.bundles.made import sealed as sealed_bundle
from tests.hostile.mutate import NASTY_TEXTS, Mutator
from tests.hostile.mutation_runs import SEED, run_cases
from tests.hostile.test_bounds import seal
from tests.resolve.world import World, component
from tests.sources.package_index import PackageIndex
from tests.support import clean_env, ok, run_cli


@dataclass
class Stage:
    """A small world that was locked and set up, and a folder for what is mutated."""

    world: World
    folder: Path
    workspace: Path
    index: PackageIndex
    trees: Trees
    patched: str

    @property
    def paths(self) -> WorkspacePaths:
        return WorkspacePaths(self.workspace)


PATCH = b"""From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: A <a@b>
Date: Mon, 1 Jan 2024 00:00:00 +0000
Subject: [PATCH] Change a

Why: it is needed.
---
 pkg/a.py | 4 ++--
diff --git a/pkg/a.py b/pkg/a.py
index 1111111..2222222 100644
--- a/pkg/a.py
+++ b/pkg/a.py
@@ -1,5 +1,5 @@ def f():
 one
 two
-three
+drei
 four
 five
@@ -10,3 +10,4 @@
 ten
 eleven
 twelve
+thirteen
diff --git a/pkg/new.py b/pkg/new.py
new file mode 100644
--- /dev/null
+++ b/pkg/new.py
@@ -0,0 +1 @@
+x = 1
--
2.40.0
"""
NUMBERS = b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\neleven\ntwelve\n"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    root = tmp_path_factory.mktemp("mutations")
    with pytest.MonkeyPatch.context() as patch:
        env = clean_env(root)
        for name, value in env.items():
            patch.setenv(name, value)
        world = World(root, env)
        up = world.repo()
        base = up.commit({"pkg/a.py": NUMBERS, "pkg/sub/b.py": "b\n"})
        up.commit({"pkg/sub/b.py": "b2\n", "docs/x": "x\n"}, on="pull", parents=["main"])
        up.pull(1, "pull")
        world.write("a.patch", PATCH)
        merge = [{"ref": "refs/pull/1/head", "base": "refs/heads/main"}]
        world.manifest(
            {"up": component(up, base, merge=merge, patches=["./a.patch"], checkout="full")},
            env={"A": "1"},
            requirements=["ray==2.42.1"],
            host={"cann": "8"},
        )
        world.lock()
        workspace = root / "ws"
        ok(run_cli(["setup", "-m", root / "project" / "m.yaml", "-w", workspace], world.env))
        folder = root / "mutated"
        folder.mkdir()
        init_bare(root / "trees")
        trees = Trees(Git(root / "trees"))
        patched = trees.put(EMPTY_TREE, "pkg/a.py", Entry(FILE, trees.write_object("blob", NUMBERS)))
        with PackageIndex() as index:
            yield Stage(world, folder, workspace, index, trees, patched)
        trees.close()


def fresh(folder: Path) -> Path:
    """The empty folder of a case."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


# -- the kinds of input --------------------------------------------------------------------------------


def sealed(body: dict[str, Any], m: Mutator) -> str:
    """A lock's text whose digest fits, mostly; a body that can't be sealed is written as it is."""
    try:
        if isinstance(body, dict) and m.random.random() < 0.9:
            return seal(body)
    except (ValueError, RecursionError):
        pass
    return m.text(body)


def a_lock(stage: Stage, m: Mutator) -> None:
    body = m.value(json.loads((stage.world.root / "project" / "m.lock.json").read_text()))
    lock = lock_model.parse(sealed(body, m), "m.lock.json")
    lock.content_id()
    store = Store()
    network = replace(Network(), offline=True)
    from npu_rl.stack.compose.composed_unit import composed
    from npu_rl.stack.sources.deliver import Deliverer

    beside = stage.world.root / "project"
    delivered = Deliverer(store, network, Silent()).deliver(lock, 1)
    composed(store, lock, [u for d in delivered.values() for u in d.units], beside)


def an_sdist(stage: Stage, m: Mutator) -> None:
    from npu_rl.stack.sources.sdist import read_sdist

    files = {
        "pkg-1.0/PKG-INFO": b"Name: pkg\n",
        "pkg-1.0/src/a.py": NUMBERS,
        "pkg-1.0/" + "l" * 150: b"long\n",
    }
    place = stage.folder / "pkg-1.0.tar.gz"
    memory = io.BytesIO()
    style = m.random.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
    with tarfile.open(fileobj=memory, mode="w", format=style) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(m.random.choice((name, name, "pkg-1.0/" + m.random.choice(NASTY_TEXTS))))
            info.size = len(data)
            with contextlib.suppress(ValueError, UnicodeError):  # tarfile writes not every name
                tar.addfile(info, io.BytesIO(data))
    inner = memory.getvalue()
    if m.random.random() < 0.3:
        place.write_bytes(m.bytes(gzip.compress(inner)))
    else:
        place.write_bytes(gzip.compress(checksummed(m.bytes(inner))))
    list(read_sdist(place))


def checksummed(tar: bytes) -> bytes:
    """The archive with header checksums that fit, so that a reader looks further."""
    blocks = [tar[i : i + 512] for i in range(0, len(tar), 512)]
    for i, block in enumerate(blocks):
        if len(block) == 512 and block[257:262] == b"ustar":
            plain = block[:148] + b" " * 8 + block[156:]
            blocks[i] = block[:148] + b"%06o\0 " % sum(plain) + block[156:]
    return b"".join(blocks)


def a_patch(stage: Stage, m: Mutator) -> None:
    from npu_rl.stack.compose.apply_patch import run_patch
    from npu_rl.stack.compose.composed_unit import locked_text
    from npu_rl.stack.patches.parse_patch import parse_patch
    from npu_rl.stack.patches.patch_header import parse_header
    from npu_rl.stack.patches.series import read_series

    read_series(m.bytes(b"# the order\n0001-a.patch\n0002-b.patch  # last\n"), "series")
    samples = [PATCH, *(p.read_bytes() for p in sorted(data_root().glob("patchsets/*/*/*.patch"))[:6])]
    data = m.bytes(m.random.choice([PATCH, PATCH, *samples]))
    strip, directory = m.random.choice((0, 1, 1, 1, 2)), m.random.choice(("", "", "pkg"))
    parsed = parse_patch(data, name="x.patch", strip=strip, directory=directory)
    parse_header(parsed.header)
    patch = lock_model.LockedPatch("x", "./x.patch", "0" * 64, "", 0, (), strip=strip, directory=directory)
    place = fresh(stage.folder / "patch") / "x.patch"
    place.write_bytes(data)
    locked = replace(patch, sha256=hashlib.sha256(data).hexdigest())
    locked_text(locked, place.parent, Store(stage.folder / "patches"), stage.trees, {})
    run_patch(stage.trees, stage.patched, patch, data, "c", (".",), headings=m.random.random() < 0.5)


def an_index_page(stage: Stage, m: Mutator) -> None:
    from npu_rl.stack.sources.pypi import download_sdist

    if m.random.random() < 0.5:
        files = [
            {"filename": f"pkg-{v}.tar.gz", "url": f"/f/pkg-{v}.tar.gz", "hashes": {"sha256": "0" * 64}, "yanked": "no",
             "requires-python": ">=3", "upload-time": "2024-01-01T00:00:00Z", "core-metadata": {"sha256": "0" * 64}}
            for v in ("1.0", "2.0")
        ]  # fmt: skip
        body = {"meta": {"api-version": "1.0"}, "name": "pkg", "files": files}
        kind, page = "application/vnd.pypi.simple.v1+json", m.json(body)
    else:
        kind = m.random.choice(("text/html", "text/html; charset=utf-16", "text/html; charset=x\ud7ff"))
        link = b'<a href="/f/pkg-%s.tar.gz#sha256=%s" data-yanked="x" data-requires-python="&gt;=3">pkg</a>\n'
        page = b'<html><base href="/x/"><body>\n' + b"".join(link % (v, b"0" * 64) for v in (b"1.0", b"2.0"))
        page = m.bytes(page)
    stage.index.raw_pages["/simple/pkg/"] = (kind.encode("ascii", "replace").decode(), page)
    settings = PipSettings(index_url=stage.index.url, timeout=1.0, retries=0)
    with pytest.MonkeyPatch.context() as patch:  # the index speaks http, and to load certificates takes 0.2 s
        patch.setattr(ssl.SSLContext, "load_verify_locations", _ignore)
        folder = stage.folder / "sdists"
        str(download_sdist("pkg", "1.0", sha256=None, settings=settings, folder=folder, pause=_ignore))


def a_made_bundle(stage: Stage, m: Mutator) -> None:
    """A tar of ours: its bytes, or content that somebody changed who makes the list fit."""
    from npu_rl.stack.bundles.open_bundle import bundled_store, open_bundle

    manifest, made, place = (
        stage.world.root / "project" / "m.yaml",
        stage.folder / "made.tar",
        stage.folder / "bundle" / "b.tar",
    )
    place.parent.mkdir(exist_ok=True)
    if not made.exists():
        make_bundle(manifest, made)
    if m.random.random() < 0.5:
        data = m.bytes(made.read_bytes())
    else:
        members = members_of(made)
        name = m.random.choice([name for name in members if "/" in name])
        data = sealed_bundle({**members, name: m.bytes(members[name])})
    place.write_bytes(data)
    lock = lock_model.read(lock_model.lock_path(manifest))
    with open_bundle(place) as bundle:
        bundled_store(bundle, lock)


def _ignore(*_: object) -> None:
    pass


KINDS: tuple[Callable[[Stage, Mutator], None], ...] = (
    a_lock,
    an_sdist,
    a_patch,
    an_index_page,
    a_made_bundle,
)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_mutated(kind: Callable[[Stage, Mutator], None], stage: Stage) -> None:
    outcome = run_cases(kind.__name__, lambda mutator: kind(stage, mutator))
    assert not outcome.failures, "\n".join(outcome.failures)
    assert outcome.refused > 0, "no mutant was refused: it hits nothing"


@pytest.mark.second
@pytest.mark.parametrize("number", range(3))
def test_no_traceback_and_nothing_outside_changed(number: int, stage: Stage) -> None:
    """The same through commands, which end with their own codes and leave what is not theirs as it was."""
    m = Mutator(f"{SEED}/command/{number}")
    project, given = stage.world.root / "project", fresh(stage.folder / "given")
    (given / "m.yaml").write_bytes(m.bytes((project / "m.yaml").read_bytes()))
    body = m.value(json.loads((project / "m.lock.json").read_text()))
    (given / "x.lock.json").write_text(sealed(body, m), errors="surrogatepass")
    lock: list[str | Path] = ["--lock", given / "x.lock.json", "-w", stage.folder / "w", "--offline"]
    before = contents(project, given, stage.workspace)
    for command in (
        ["lock", "-m", given / "m.yaml", "--offline", "-o", stage.folder / "made.json"],
        ["setup", "-m", project / "m.yaml", *lock],
        ["recipes", "check", "quickstart", f"{m.random.choice(NASTY_TEXTS)}=1".replace("\0", "")],
    ):
        words = [str(word).encode("utf-8", "replace").decode() for word in command]
        done = run_cli(words, stage.world.env, stage.folder)
        assert done.returncode in (0, 1, 2, 3), done.stderr
        assert "Traceback" not in done.stderr and "bug in npu-rl" not in done.stderr, done.stderr
    assert contents(project, given, stage.workspace) == before


def contents(*folders: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for folder in folders for p in folder.rglob("*") if p.is_file()}
