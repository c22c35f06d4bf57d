"""An sdist as objects: its files, byte for byte, as the tree that the lock names."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
from pathlib import Path

import pytest

from npu_rl.common.errors import SourceError
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.objects import Entry, nested, object_id
from npu_rl.stack.lock.lock_model import LockedComponent, LockedSource, LockedTake
from npu_rl.stack.sources.git_fetch import GitRequest
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.sdist_unit import fetch_sdist, import_sdist
from npu_rl.stack.store import Store, Unit
from tests.sources.archives import member, tar_bytes
from tests.sources.mirrors import Notes, network, objects_of
from tests.sources.package_index import PackageIndex

FILES = {
    "setup.py": (b"raise SystemExit('never run')\n", False),
    "p/__init__.py": (b"", False),
    "p/run.sh": (b"#!/bin/sh\r\n", True),
    'p/two "words".py': (b"x = '$Id$'\n", False),
    "p/größe.bin": (bytes(range(256)) * 400, False),
    "p/_version.py": (b"generated\n", False),
    "p/.gitattributes": (b"* text eol=crlf\n", False),
    "docs/x": (b"unwanted\n", False),
}
SOURCE = LockedSource(pypi="up==1.0", drop=("p/_version.py",))


def archive(files: dict[str, tuple[bytes, bool]] = FILES) -> bytes:
    members = (member(f"up-1.0/{n}", data, 0o755 if run else 0o644) for n, (data, run) in files.items())
    return gzip.compress(tar_bytes(*members), mtime=0)


def expected_tree(*, under: str = "p/", without: str = "p/_version.py") -> str:
    entries = [
        (name, Entry("100755" if run else "100644", object_id("blob", data)))
        for name, (data, run) in FILES.items()
        if name.startswith(under) and name != without
    ]
    return list(nested(entries))[-1][0]


@pytest.fixture
def index(index: PackageIndex) -> PackageIndex:
    index.add("up", "up-1.0.tar.gz", archive())
    return index


def fetched(
    store: Store,
    *more: str,
    source: LockedSource = SOURCE,
    tree: str = expected_tree(),
    here: Network = network(),  # noqa: B008
) -> tuple[Unit, int]:
    """The unit of a locked tree (and of `more` objects) and how much was received; a refusal leaves none."""
    component = LockedComponent((source,), (LockedTake("p", "p", "40000", tree),), tree, tree)
    request = GitRequest("up", (tree, *more))
    try:
        unit, received = fetch_sdist(store, request, source, component, here, Notes())
    except SourceError:
        assert store.find(request.key) is None
        raise
    assert store.find(request.key) == unit
    return unit, received


def test_an_sdist_becomes_one_tree(index: PackageIndex, scratch: Path) -> None:
    repository, notes = Git(scratch), Notes()
    done = import_sdist(repository, "up", SOURCE, ["p"], network(), notes, beside=["docs", "none"])
    assert (done.tree, done.beside) == (expected_tree(), {"docs/x": b"unwanted\n"})
    digest = hashlib.sha256(archive()).hexdigest()
    assert (done.source.sha256, done.source.filename) == (digest, "up-1.0.tar.gz")
    assert (notes.begun, notes.fractions[-1]) == (["up: up==1.0"], 1.0)
    assert [p.name for p in (scratch / "objects").glob("??")] == [], "one pack, no loose objects"
    assert not list(scratch.rglob("npu-rl-*")), "the archive is gone"
    repository.run("fsck", "--strict", "--no-dangling")


def test_a_unit_from_an_sdist(index: PackageIndex, store: Store, scratch: Path) -> None:
    unit, received = fetched(store)
    assert (received, unit.facts()["source"]) == (len(archive()), "up==1.0")
    assert expected_tree() in objects_of(unit, scratch)


@pytest.mark.parametrize(
    ("tree", "more", "sha256", "found"),
    [
        ("1" * 40, (), None, "111111111111 is locked"),
        (expected_tree(), ("2" * 40,), None, "only git has"),
        (expected_tree(), (), "0" * 64, "wrong sha256"),
    ],
    ids=["another tree", "more than it has", "another hash"],
)
def test_an_sdist_that_is_not_the_locked_one(
    tree: str, more: tuple[str, ...], sha256: str | None, found: str, index: PackageIndex, store: Store
) -> None:
    with pytest.raises(SourceError) as caught:
        fetched(store, *more, tree=tree, source=dataclasses.replace(SOURCE, sha256=sha256))
    assert found in str(caught.value)
