"""Source releases: alone, pinned by their hash; beside git, only where they equal the pin."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest

from npu_rl.common.errors import SourceError
from tests.resolve.world import World, component, pull, request, takes
from tests.sources.archives import sdist
from tests.sources.package_index import PackageIndex
from tests.support import Repo

FILES = {"demo/__init__.py": "x = 1\n", "demo/sub/m.py": "m\n", "demo/_version.py": "made\n", "README": "r\n"}


def publish(index: PackageIndex, files: Mapping[str, str] = FILES, version: str = "1.0") -> bytes:
    data = sdist("demo", version, files)
    index.projects.pop("demo", None)
    index.add("demo", f"demo-{version}.tar.gz", data)
    return data


def release(**more: Any) -> dict[str, Any]:
    source = {"pypi": "demo==1.0", "drop": ["demo/_version.py"]}
    return {"sources": [source], "take": [{"from": "demo", "to": "demo"}], **more}


def both(up: Repo, *drop: str, **more: Any) -> dict[str, Any]:
    sources = [{"git": up.url}, {"pypi": "demo==1.0", "drop": list(drop)}]
    return component(up, up.id("main"), take=takes(("demo", "demo")), **{"sources": sources, **more})


def upstream(world: World, **changes: str) -> Repo:
    up = world.repo()
    files = {path: content for path, content in FILES.items() if path != "demo/_version.py"}
    up.commit({**files, **changes})
    return up


def downloads(index: PackageIndex) -> int:
    return sum(path.startswith("/files/") for path in index.requests)


# -- alone ---------------------------------------------------------------------------------------------


def test_a_release_alone_is_pinned_by_its_hash(world: World, index: PackageIndex) -> None:
    data = publish(index)
    lock = world.locked({"demo": release(dist={"name": "demo", "version": "1.0"})})
    demo = lock.components["demo"]
    (source,) = demo.sources
    assert (source.sha256, source.size, source.filename) == (
        hashlib.sha256(data).hexdigest(),
        len(data),
        "demo-1.0.tar.gz",
    )
    assert (demo.pin, demo.proof, demo.tree) == (None, (), demo.result)
    assert downloads(index) == 1  # also what the composition needs is kept
    made = world.compose(lock)
    assert sorted(made.code) == [
        "demo-1.0.dist-info/INSTALLER",
        "demo-1.0.dist-info/METADATA",
        "demo/__init__.py",
        "demo/sub/m.py",
    ]
    assert f"Pin: demo==1.0 sha256:{source.sha256}" in made.log()


def test_another_file_under_the_same_name_is_refused(world: World, index: PackageIndex) -> None:
    publish(index)
    lock = world.locked({"demo": release()})
    publish(index, {**FILES, "demo/__init__.py": "import os; os.system('x')\n"})
    with pytest.raises(SourceError, match="No source delivered demo") as error:
        world.compose(lock)
    assert "sha256" in str(error.value).lower()
    with pytest.raises(SourceError):
        world.check()
    new = world.lock()  # only a new lock takes it, and everybody sees the hash change
    assert new.components["demo"].sources[0].sha256 != lock.components["demo"].sources[0].sha256


# -- beside git ----------------------------------------------------------------------------------------


def test_a_release_that_equals_the_pin_is_a_source(world: World, index: PackageIndex) -> None:
    publish(index)
    up = upstream(world)
    lock = world.locked({"up": both(up, "demo/_version.py")})
    git, pypi = lock.components["up"].sources
    assert git.git == up.url and pypi.sha256 and pypi.drop == ("demo/_version.py",)
    up.path.rename(world.root / "gone.git")  # then the release delivers the pin's very tree
    assert world.compose(lock).code["demo/sub/m.py"] == b"m\n"
    assert world.compose(lock).code.keys() >= {"demo/__init__.py"}


def test_a_release_that_differs_from_the_pin_is_told_file_by_file(world: World, index: PackageIndex) -> None:
    publish(index)
    up = upstream(world, **{"demo/sub/m.py": "other\n", "demo/only-git.md": "g\n"})
    up.commit({f"demo/z{n:02}.py": "g\n" for n in range(20)})
    message = world.refused({"up": both(up)})
    assert "demo==1.0 differs from up at" in message
    assert "only in the release: demo/_version.py" in message
    assert "differs: demo/sub/m.py" in message
    assert "not in the release: demo/only-git.md" in message
    assert "demo/__init__.py" not in message and "`drop:`" in message
    assert "demo/z11.py\n" in message and "and 8 more" in message


def test_a_release_is_no_source_of_merges_or_whole_checkouts(world: World, index: PackageIndex) -> None:
    publish(index)
    up = upstream(world)
    pull(up, 1, {"demo/sub/m.py": "pr\n"})
    for more in ({"merge": [request(1)]}, {"checkout": "full"}):
        assert "demo==1.0 can't be a source of up" in world.refused(
            {"up": both(up, "demo/_version.py", **more)}
        )
