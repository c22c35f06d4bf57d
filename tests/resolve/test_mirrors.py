"""Locking from servers of protocol v0, and from mirrors that lie, lag or are gone: each is blamed by its own name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import SourceError
from npu_rl.stack.lock.lock_model import LockedSource
from tests.resolve.world import World, component, pull, request
from tests.support import Daemon, Repo, serve

# -- protocol v0 -----------------------------------------------------------------------------------------


def old_server(world: World, up: Repo, daemon: Daemon, ref: str, **more: Any) -> dict[str, Any]:
    return component(up, ref, **{"sources": [{"git": daemon.url(up.path.name)}], **more})


@pytest.mark.parametrize("ref", ["annotated", "light", "inner id", "branch"])
def test_a_server_of_protocol_v0(world: World, ref: str) -> None:
    """Its clients may ask for the tips of refs only: the chain of `setup` leads on."""
    up = world.repo()
    inner = up.commit({"pkg/a.py": "one\n", "other": "o\n"})
    if ref in ("annotated", "light"):
        up.tag("v1", inner, annotated=ref == "annotated")
    tip = up.commit({"pkg/a.py": "two\n"})
    names = {"annotated": "refs/tags/v1", "light": "refs/tags/v1", "inner id": inner}
    wanted = {"branch": tip}.get(ref, inner)
    with serve(up.path.parent, v0=True) as daemon:
        lock = world.locked({"up": old_server(world, up, daemon, names.get(ref, "refs/heads/main"))})
        assert lock.components["up"].pin == wanted
        assert world.compose(lock).code["pkg/a.py"] == (b"two\n" if ref == "branch" else b"one\n")
        assert world.check() == lock


@pytest.mark.parametrize("how", ["merge", "pick"])
def test_requests_on_a_server_of_protocol_v0(world: World, how: str) -> None:
    """Neither the pin nor the merge base is the tip of a ref."""
    up = world.upstream({"pkg/a.py": "a\n", "pkg/b.py": "b\n"})
    pin = up.commit({"pkg/b.py": "B\n"})
    pull(up, 7, {"pkg/a.py": "A\n"}, at=pin)
    up.commit({"pkg/c.py": "later\n"})
    with serve(up.path.parent, v0=True) as daemon:
        lock = world.locked({"up": old_server(world, up, daemon, pin, merge=[request(7, how)])})
        code = world.compose(lock).code
    assert (code["pkg/a.py"], code["pkg/b.py"], "pkg/c.py" in code) == (b"A\n", b"B\n", False)


def test_an_id_that_nobody_has_costs_no_history(world: World) -> None:
    """A server that says so of an id is not asked for everything."""
    up = world.upstream({"pkg/a.py": "a\n"})
    with serve(up.path.parent) as daemon:
        with pytest.raises(SourceError, match="No source has the commits of up") as error:
            world.locked({"up": old_server(world, up, daemon, "1" * 40)})
    assert "everything" not in str(error.value)
    assert "The server was reached, but does not have these objects" in str(error.value.hint)


# -- who is blamed ---------------------------------------------------------------------------------------


@pytest.fixture
def mirror(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror that https://upstream.example/ is rewritten to; it has another history than the original."""
    other = Repo(world.root / "mirror" / "up.git")
    other.commit({"pkg/a.py": "stale\n"})
    place = world.root / "mirror"
    monkeypatch.setenv("NPU_RL_REWRITE", f"https://upstream.example/=file://{place}/")
    return place


def rewritten(up: Repo, ref: str, **more: Any) -> dict[str, Any]:
    return component(up, ref, sources=[{"git": "https://upstream.example/up.git"}], **more)


def test_a_stale_mirror_is_blamed_under_the_url_that_was_asked(world: World, mirror: Path) -> None:
    up = world.repo()
    pin = up.commit({"pkg/a.py": "a\n"})
    with pytest.raises(SourceError) as error:
        world.locked({"up": rewritten(up, pin)})
    asked = f"file://{mirror}/up.git (rewritten from https://upstream.example/up.git): "
    assert str(error.value.why).startswith(asked)
    assert "Check the network" not in str(error.value) and "server was reached" in str(error.value.hint)
    lock = world.locked({"up": component(up, pin)})
    there = replace(lock.components["up"], sources=(LockedSource(git="https://upstream.example/up.git"),))
    with pytest.raises(SourceError, match="No source delivered up") as error:
        world.compose(replace(lock, components={"up": there}))
    assert str(error.value.why).startswith(asked)
    assert "the server sent other objects" in str(error.value.why)
    assert "Check the network" not in str(error.value) and "server was reached" in str(error.value.hint)


def test_a_request_that_was_pushed_over_and_pruned(world: World) -> None:
    """The mirror has the request at another commit: that is said, and nobody looks for faults in the network."""
    up = world.repo()
    pin = up.commit({"pkg/a.py": "a\n"})
    head = pull(up, 7, {"pkg/a.py": "A\n"})
    lock = world.locked({"up": component(up, pin, merge=[request(7, "pick")])})
    new = up.commit({"pkg/a.py": "B\n"}, on="refs/pull/7/head", parents=[pin])
    up.git("reflog", "expire", "--expire=now", "--all")
    up.git("gc", "-q", "--prune=now")
    assert head not in up.git("cat-file", "--batch-all-objects", "--batch-check")
    with pytest.raises(SourceError, match="No source delivered up") as error:
        world.compose(lock)
    assert f"refs/pull/7/head is at {new[:12]} there" in str(error.value.why)
    assert "force-pushed" in str(error.value.hint) and "Check the network" not in str(error.value)
