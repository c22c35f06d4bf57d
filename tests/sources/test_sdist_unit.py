"""An sdist as objects: its files, byte for byte, as the tree that the lock names."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import SourceError
from npu_rl.stack.git.command import Git
from npu_rl.stack.git.messages import GitStopped
from npu_rl.stack.git.objects import Entry, nested, object_id
from npu_rl.stack.lock.lock_model import LockedComponent, LockedSource, LockedTake
from npu_rl.stack.sources.git_fetch import GitRequest
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.sdist_unit import fetch_sdist, import_sdist, split_requirement
from npu_rl.stack.store import Store, Unit
from tests.sources.archives import member, tar_bytes
from tests.sources.mirrors import Notes, forge, network, objects_of
from tests.sources.package_index import Cut, PackageIndex

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


def test_an_sdist_becomes_one_tree(index: PackageIndex, store: Store, scratch: Path) -> None:
    repository, notes = Git(scratch), Notes()
    done = import_sdist(repository, "up", SOURCE, ["p"], network(), notes, store)
    assert done.tree == expected_tree()
    assert done.sdist.sha256 == hashlib.sha256(archive()).hexdigest()
    assert notes.begun == ["up: up==1.0"]
    assert notes.fractions[-1] == 1.0
    assert [p.name for p in (scratch / "objects").glob("??")] == [], "one pack, no loose objects"
    assert not list(scratch.rglob("npu-rl-*")), "the archive is gone"
    repository.run("fsck", "--strict", "--no-dangling")


def test_a_unit_from_an_sdist(index: PackageIndex, store: Store, scratch: Path) -> None:
    unit, received = fetched(store)
    assert received == len(archive())
    assert unit.facts()["source"] == "up==1.0"
    assert expected_tree() in objects_of(unit, scratch)


@pytest.mark.parametrize("facts", [{"filename": "../../../up-1.0.tar.gz"}, {"blob": "--batch"}], ids=str)
def test_a_kept_archive_with_forged_facts_is_downloaded_again(
    facts: dict[str, Any], index: PackageIndex, store: Store, scratch: Path, tmp_path: Path
) -> None:
    source = LockedSource(pypi="up==1.0", drop=SOURCE.drop, sha256=hashlib.sha256(archive()).hexdigest())

    def received() -> int:
        return import_sdist(Git(scratch), "up", source, ["p"], network(), Notes(), store).received

    assert (received(), received()) == (len(archive()), 0)
    (unit,) = [Unit(path.name, path) for path in store.units.iterdir()]
    forge(unit, **facts)
    assert (received(), received()) == (len(archive()), 0)
    assert not list(tmp_path.rglob("up-1.0.tar.gz")), "it was written outside of a temporary folder"


@pytest.mark.parametrize(
    ("tree", "more", "said"),
    [("1" * 40, (), "111111111111 is locked"), (expected_tree(), ("2" * 40,), "only git has")],
    ids=["another tree", "more than it has"],
)
def test_an_sdist_that_does_not_stand_for_the_lock(
    tree: str, more: tuple[str, ...], said: str, index: PackageIndex, store: Store
) -> None:
    with pytest.raises(SourceError, match=r"up==1\.0 does not match the lock") as caught:
        fetched(store, *more, tree=tree)
    assert said in str(caught.value)


def test_a_wrong_hash(index: PackageIndex, store: Store) -> None:
    with pytest.raises(SourceError, match="No index delivered") as caught:
        fetched(store, source=dataclasses.replace(SOURCE, sha256="0" * 64))
    assert "wrong sha256" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "keep", "lacking"),
    [
        (LockedSource(pypi="up==1.0", drop=("p/none.py",)), ["p"], "p/none.py"),
        (LockedSource(pypi="up==1.0"), ["p", "q"], "q"),
    ],
)
def test_a_path_that_the_sdist_lacks(
    source: LockedSource, keep: list[str], lacking: str, index: PackageIndex, store: Store, scratch: Path
) -> None:
    with pytest.raises(SourceError, match=f"does not have {lacking}"):
        import_sdist(Git(scratch), "up", source, keep, network(), Notes(), store)


def test_a_transfer_that_breaks_off_is_tried_again_as_often_as_the_network_allows(
    index: PackageIndex, store: Store
) -> None:
    path = "/files/up/up-1.0.tar.gz"
    index.faults[path] = [Cut(500)] * 9
    with pytest.raises(SourceError):
        fetched(store, here=network(retries=0))
    assert index.requests.count(path) == 1


def test_an_unsafe_archive(index: PackageIndex, store: Store) -> None:
    index.projects["up"][0].data = archive({**FILES, "../evil": (b"", False)})
    with pytest.raises(SourceError):
        fetched(store)


def test_work_can_be_given_up(index: PackageIndex, store: Store) -> None:
    here = network()
    here.stop.set()
    with pytest.raises(GitStopped):
        fetched(store, here=here)


@pytest.mark.parametrize(
    ("text", "parts"), [("vllm==0.9.1", ("vllm", "0.9.1")), ("a-b == 1.0+local", ("a-b", "1.0+local"))]
)
def test_split_requirement(text: str, parts: tuple[str, str]) -> None:
    assert split_requirement(text) == parts
