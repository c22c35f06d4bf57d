"""A path that is taken and that only a merge brings: a folder, a file, and what is still refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npu_rl.common.errors import LockError
from npu_rl.stack.lock import lock_model
from tests.resolve.world import World, component, pull, request, takes
from tests.support import File

TAKES = takes(("pkg", "pkg"), ("recipe/r1", "recipe/r1"), ("run.sh", "tools/run.sh"))


def test_a_request_brings_a_folder_and_a_file_that_are_taken(world: World) -> None:
    up = world.upstream({"pkg/a.py": "a\n", "recipe/other/x.py": "x\n"})
    pin = up.id("main")
    pull(
        up,
        7,
        {
            "recipe/r1/main.py": "m\n",
            "recipe/r1/deep/b.py": "b\n",
            "run.sh": "#!/bin/sh\n",
            "pkg/a.py": "A\n",
        },
    )
    world.write("x.patch", "--- a/recipe/r1/main.py\n+++ b/recipe/r1/main.py\n@@ -1 +1 @@\n-m\n+n\n")
    entry = component(up, pin, take=TAKES, merge=[request(7, "pick")], patches=["./x.patch"])
    lock = world.locked({"up": entry})
    locked = lock.components["up"]
    assert [take.id is None for take in locked.take] == [False, True, True]
    assert set(locked.merges[0].inside) == {"recipe/r1/main.py", "recipe/r1/deep/b.py", "run.sh", "pkg/a.py"}
    made = world.compose(lock)
    assert made.code == {
        "pkg/a.py": b"A\n",
        "recipe/r1/main.py": b"n\n",
        "recipe/r1/deep/b.py": b"b\n",
        "tools/run.sh": b"#!/bin/sh\n",
    }
    assert world.check() == lock


def test_what_no_request_brings_is_refused(world: World) -> None:
    up = world.upstream({"pkg/a.py": "a\n"})
    pin = up.id("main")
    pull(up, 7, {"pkg/a.py": "A\n", "link": File("pkg", mode="120000"), "file": "f\n"})
    for take, says in (
        (("recipe/r1", "r"), "up has no path recipe/r1 at this pin"),
        (("recipe/*", "r"), "`take:` does not support patterns"),
        (("link", "link"), "link of up is a symbolic link"),
        (("file", "."), "file of up is a file"),
    ):
        message = world.refused(
            {"up": component(up, pin, take=takes(("pkg", "pkg"), take), merge=[request(7, "pick")])}
        )
        assert says in message


def test_the_lock_proves_that_the_pin_does_not_have_it(world: World) -> None:
    """A lock that says so of a path the pin has, or that shows nothing, is refused."""
    up = world.upstream({"pkg/a.py": "a\n", "recipe/other/x.py": "x\n"})
    pin = up.id("main")
    pull(up, 7, {"recipe/r1/main.py": "m\n"})
    lock = world.locked({"up": component(up, pin, take=TAKES[:2], merge=[request(7, "pick")])})
    whole = lock.components["up"]
    for take, proof in (
        (replace(whole.take[0], mode=None, id=None), whole.proof),
        (whole.take[1], whole.proof[:2]),  # without the tree of recipe/
    ):
        forged = replace(whole, take=(take,), proof=proof)
        text = lock_model.dump(replace(lock, components={"up": forged}))
        with pytest.raises(LockError, match="is recorded as absent, and the proof does not show that"):
            lock_model.parse(text, "lock")
