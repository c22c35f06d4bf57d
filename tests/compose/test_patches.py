"""Patches that apply: what they do, where their texts come from, and what the lock says of them."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from npu_rl.common.errors import LockError, ManifestError, PatchError
from npu_rl.stack.lock.lock_model import Lock, dump
from npu_rl.stack.store import Store
from tests.compose.test_bad_patches import CONTENT, GOOD, edit
from tests.resolve.world import Composition, World, component, takes
from tests.support import File, Files


def upstream(world: World, **more: Files) -> dict[str, Any]:
    up = world.upstream({"pkg/a.py": CONTENT, "pkg/sub/b.py": "b\n", "setup.py": "s\n", **more})
    return component(up, up.id("main"))


def locked(world: World, *patches: object, entry: dict[str, Any] | None = None) -> Lock:
    return world.locked({"up": {**(entry or upstream(world)), "patches": list(patches)}})


def patched(
    world: World, patch: str | bytes, entry: dict[str, Any] | None = None, **options: Any
) -> Composition:
    """What comes of one patch, written to `x.patch`."""
    world.write("x.patch", patch)
    return world.compose(locked(world, {"path": "./x.patch", **options}, entry=entry))


def names(lock: Lock) -> list[str]:
    return [patch.name for patch in lock.components["up"].patches]


# -- what a patch may do -------------------------------------------------------------------------------


def test_files_are_made_deleted_and_made_executable(world: World) -> None:
    made = patched(
        world,
        "--- /dev/null\n+++ b/pkg/new/n.py\n@@ -0,0 +1,2 @@\n+one\n+two\n\\ No newline at end of file\n"
        "diff --git a/pkg/run.sh b/pkg/run.sh\nnew file mode 100755\n--- /dev/null\n+++ b/pkg/run.sh\n"
        "@@ -0,0 +1 @@\n+#!/bin/sh\n"
        "diff --git a/pkg/empty b/pkg/empty\nnew file mode 100644\nindex 0000000..e69de29\n"
        "diff --git a/pkg/sub/b.py b/pkg/sub/b.py\ndeleted file mode 100644\n"
        "--- a/pkg/sub/b.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-b\n"
        "diff --git a/pkg/a.py b/pkg/a.py\nold mode 100644\nnew mode 100755\n"
        + GOOD,
    )  # fmt: skip
    ours = {p: (made.modes[p], c) for p, c in made.code.items() if p.startswith("pkg/")}
    assert ours == {
        "pkg/a.py": ("100755", CONTENT.replace("line 3\n", "LINE 3\n", 1).encode()),
        "pkg/empty": ("100644", b""),
        "pkg/new/n.py": ("100644", b"one\ntwo"),
        "pkg/run.sh": ("100755", b"#!/bin/sh\n"),
    }


def test_bytes_stay_bytes(world: World) -> None:
    """CRLF lines, letters that are no UTF-8, a last line without an end."""
    entry = upstream(world, **{"pkg/dos.txt": b"one\r\ntwo\r\ncaf\xe9"})
    patch = b"--- a/pkg/dos.txt\n+++ b/pkg/dos.txt\n@@ -1,3 +1,3 @@\n one\r\n-two\r\n+zwei\r\n caf\xe9\n"
    made = patched(world, patch + b"\\ No newline at end of file\n", entry)
    assert made.code["pkg/dos.txt"] == b"one\r\nzwei\r\ncaf\xe9"


def test_patches_stack(world: World) -> None:
    """The second sees what the first did, in the order of `series`; what is overwritten is superseded."""
    world.write("set/0001-first.patch", GOOD)
    world.write("set/0002-again.patch", GOOD.replace("-line 3\n+LINE 3", "-LINE 3\n+third"))
    world.write("set/series", "0001-first.patch\n0002-again.patch  # on top\n")
    lock = locked(world, "./set")
    assert names(lock) == ["0001-first", "0002-again"]
    made = world.compose(lock)
    assert made.code["pkg/a.py"].decode() == CONTENT.replace("line 3\n", "third\n", 1)
    assert [(h["patch"], h["state"]) for h in made.hunks] == [
        ("0001-first", "superseded"),
        ("0002-again", "in place"),
    ]
    world.write("set/series", "0002-again.patch\n0001-first.patch\n")
    with pytest.raises(PatchError, match="0002-again does not apply"):
        world.lock()


# -- strip, directory ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("pkg/a.py", {"strip": 0}),
        ("x/y/z/pkg/a.py", {"strip": 3}),
        ("x/a.py", {"strip": 1, "directory": "pkg"}),
        ("a.py", {"strip": 0, "directory": "pkg"}),
    ],
)
def test_strip_and_directory(world: World, path: str, options: dict[str, object]) -> None:
    patch = GOOD.replace("a/pkg/a.py", path).replace("b/pkg/a.py", path)
    made = patched(world, patch, **options)
    assert made.code["pkg/a.py"].decode() == CONTENT.replace("line 3\n", "LINE 3\n", 1)
    assert [h["file"] for h in made.hunks] == ["pkg/a.py"]


# -- where the text comes from -------------------------------------------------------------------------


def test_a_text_that_changed_since_the_lock(world: World) -> None:
    path = world.write("x.patch", GOOD)
    lock = locked(world, "./x.patch")
    path.write_text(GOOD.replace("LINE", "Line"))
    with pytest.raises(PatchError, match="locked text of") as error:
        world.compose(lock)
    assert "./x.patch" in str(error.value) and "changed after the lock" in str(error.value)
    path.unlink()
    with pytest.raises(PatchError, match="locked text of") as error:
        world.compose(lock)
    assert "does not exist" in str(error.value)
    made = world.compose(lock, Store(world.root / "store"))  # the store of the lock has kept it
    assert b"LINE 3" in made.code["pkg/a.py"]


def test_a_patch_that_is_not_there(world: World) -> None:
    with pytest.raises(LockError, match=r"The patch \./absent\.patch does not exist"):
        locked(world, "./absent.patch")
    with pytest.raises(ManifestError, match="Unknown bundled patchset"):
        locked(world, "up/9.9")
    world.write("set/0001-x.patch", GOOD)
    with pytest.raises(PatchError, match="has no `series` file"):
        locked(world, "./set")


@pytest.mark.second
def test_a_patch_too_large_to_be_one(world: World) -> None:
    with pytest.raises(PatchError, match="is too large"):
        patched(world, GOOD + "-- \n" + "x\n" * (9 * 1024 * 1024))


# -- from a component ----------------------------------------------------------------------------------


def recipe(world: World, files: Files, **more: Any) -> dict[str, Any]:
    """A component that brings patches for another one in its folder `fixes`."""
    repo = world.upstream(files, name="recipe")
    return component(repo, repo.id("main"), take=takes(("fixes", "recipe/fixes")), **more)


FIXES = {"from": "recipe", "path": "fixes"}
FIX = {"from": "recipe", "path": "fixes/x.patch"}


def both(world: World, files: Files, *patches: object, **more: Any) -> Lock:
    entry = {**upstream(world), "patches": list(patches)}
    return world.locked({"recipe": recipe(world, files, **more), "up": entry})


SECOND = GOOD.replace("-line 3\n+LINE 3", "-LINE 3\n+third")


def test_a_patch_out_of_another_component(world: World) -> None:
    lock = both(world, {"fixes/x.diff": GOOD}, {"from": "recipe", "path": "fixes/x.diff"})
    (patch,) = lock.components["up"].patches
    assert (patch.name, patch.file) == ("x", "recipe:fixes/x.diff")
    assert b"LINE 3" in world.compose(lock).code["pkg/a.py"]


@pytest.mark.parametrize("series", [None, "b.patch\na.patch\n"])
def test_a_folder_of_another_component(world: World, series: str | None) -> None:
    first, second = (GOOD, SECOND) if series is None else (SECOND, GOOD)
    files: dict[str, str | File] = {
        "fixes/a.patch": first,
        "fixes/b.patch": second,
        "fixes/README": "no patch\n",
        "fixes/link.patch": File("a.patch", mode="120000"),
    }
    if series is not None:
        files["fixes/series"] = series
    lock = both(world, files, FIXES)
    assert names(lock) == (["a", "b"] if series is None else ["b", "a"])
    assert world.compose(lock).code["pkg/a.py"].decode() == CONTENT.replace("line 3\n", "third\n", 1)


@pytest.mark.parametrize(
    ("files", "path", "says"),
    [
        ({"fixes/x.patch": GOOD}, "fixes/absent.patch", "recipe has no path fixes/absent.patch at its pin"),
        ({"fixes/x.patch": GOOD}, "else/y.patch", "recipe has no path else/y.patch at this pin"),
        (
            {"fixes/x.patch": GOOD, "else/y.patch": GOOD},
            "else/*",
            "`path: ... from:` does not support patterns",
        ),
        ({"fixes/README": "r\n"}, "fixes", "No patch is there"),
        ({"fixes/x.patch": File("y", mode="120000")}, "fixes/x.patch", "neither a file nor a folder"),
        ({"fixes/series": "x.patch\n", "fixes/a.patch": GOOD}, "fixes", "The patch x.patch does not exist"),
    ],
)
def test_what_another_component_has_not(world: World, files: Files, path: str, says: str) -> None:
    with pytest.raises((LockError, PatchError)) as error:
        both(world, files, {"from": "recipe", "path": path})
    assert says in str(error.value)


def test_the_other_component_comes_first(world: World) -> None:
    entry = {**upstream(world), "patches": [FIX]}
    message = world.refused({"up": entry, "recipe": recipe(world, {"fixes/x.patch": GOOD})})
    assert "which comes after it in the manifest" in message
    assert "Move recipe before up" in message


def test_the_tree_may_be_patched_out_of_a_component(world: World) -> None:
    entries = {"up": upstream(world), "recipe": recipe(world, {"fixes/x.patch": GOOD})}
    lock = world.locked(entries, tree={"patches": [FIX]})
    made = world.compose(lock)
    assert made.code["pkg/a.py"].decode() == CONTENT.replace("line 3\n", "LINE 3\n", 1)
    assert made.code["recipe/fixes/x.patch"].decode() == GOOD


@pytest.mark.parametrize("path", ["else/y.patch", "else", "."])
def test_what_only_holds_patches_need_not_be_taken(world: World, path: str) -> None:
    """A component may take something else, or nothing at all; a set-up with an empty store gets the patches."""
    files = {"fixes/README": "r\n", "else/y.patch": GOOD, "else/more": "m\n"}
    lock = both(world, files, {"from": "recipe", "path": path})
    assert [held.path for held in lock.components["recipe"].held] == [path]
    made = world.compose(lock)
    assert b"LINE 3" in made.code["pkg/a.py"]
    assert [p for p in made.code if p.startswith("recipe/")] == ["recipe/fixes/README"]
    bare = recipe(world, files)
    del bare["take"]
    entry = {**upstream(world), "patches": [{"from": "recipe", "path": path}]}
    alone = world.locked({"recipe": bare, "up": entry})
    assert alone.components["recipe"].take == ()
    made = world.compose(alone, world.empty_store())
    assert b"LINE 3" in made.code["pkg/a.py"] and not [p for p in made.code if p.startswith("recipe/")]
    assert world.check() == alone


# -- CRLF ------------------------------------------------------------------------------------------------


def dos(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode()


def test_a_patch_with_crlf_is_refused(world: World) -> None:
    with pytest.raises(PatchError, match="The patch itself has CRLF line ends") as error:
        both(world, {"fixes/a.patch": dos(GOOD), "fixes/b.patch": SECOND}, FIXES)
    assert "`eol: lf`" in str(error.value.hint)


def test_eol_lf_makes_crlf_patches_apply(world: World) -> None:
    """The lock has the hash of the file as it is in the component, and the rule."""
    files = {"fixes/a.patch": dos(GOOD), "fixes/b.patch": SECOND}
    lock = both(world, files, {**FIXES, "eol": "lf"})
    first = lock.components["up"].patches[0]
    assert (first.eol, first.sha256) == ("lf", hashlib.sha256(dos(GOOD)).hexdigest())
    made = world.compose(lock)
    assert made.code["pkg/a.py"].decode() == CONTENT.replace("line 3\n", "third\n", 1)
    assert [h["state"] for h in made.hunks] == ["superseded", "in place"]


def test_a_file_with_crlf_is_patched_as_it_is(world: World) -> None:
    """Its hunk lines keep their CRLF, with `eol: lf` too: the patch's own lines are what that is about."""
    entry = upstream(world, **{"pkg/dos.txt": b"one\r\ntwo\r\n"})
    patch = b"--- a/pkg/dos.txt\n+++ b/pkg/dos.txt\n@@ -1,2 +1,2 @@\n one\r\n-two\r\n+2\r\n"
    world.write("x.patch", patch)
    for options in ({}, {"eol": "lf"}):
        lock = locked(world, {"path": "./x.patch", **options}, entry=entry)
        assert lock.components["up"].patches[0].eol == "keep"
        assert world.compose(lock).code["pkg/dos.txt"] == b"one\r\n2\r\n"
    with pytest.raises(PatchError, match="Only white space differs"):
        patched(world, patch.replace(b"\r", b"").replace(b"\n", b"\r\n"), entry, eol="lf")


# -- damaged patches of a component ----------------------------------------------------------------------


def test_a_final_newline_is_added_and_recorded(world: World) -> None:
    """The lock has the hash of the file as it is in the component, and the rule; so has the commit."""
    damaged = GOOD.rstrip("\n")
    rule = {**FIXES, "repair": "final-newline"}
    lock = both(world, {"fixes/a.patch": damaged, "fixes/b.patch": SECOND}, rule)
    first, second = lock.components["up"].patches
    assert (first.repair, first.sha256) == ("final-newline", hashlib.sha256(damaged.encode()).hexdigest())
    assert second.repair == "none"
    assert dump(lock).count('"repair"') == 1  # a lock without such patches is as it was
    made = world.compose(lock)
    assert made.code["pkg/a.py"].decode() == CONTENT.replace("line 3\n", "third\n", 1)
    assert made.log().count("Repair: final-newline") == 1
    assert world.check() == lock


def replacing(world: World, sha256: str, **more: object) -> dict[str, Any]:
    world.write("mine.patch", GOOD)
    return {"path": "./mine.patch", "replaces": {**FIX, "sha256": sha256, **more}}


def test_a_patch_takes_the_place_of_a_damaged_one(world: World) -> None:
    damaged = GOOD.rstrip("\n") + "x"
    entry = replacing(world, hashlib.sha256(damaged.encode()).hexdigest())
    bare = recipe(world, {"fixes/x.patch": damaged})
    del bare["take"]
    lock = world.locked({"recipe": bare, "up": {**upstream(world), "patches": [entry]}})
    (patch,) = lock.components["up"].patches
    assert (patch.name, patch.replaces) == ("mine", "recipe:fixes/x.patch")
    made = world.compose(lock, world.empty_store())
    assert b"LINE 3" in made.code["pkg/a.py"] and "Replaces: recipe:fixes/x.patch" in made.log()
    assert world.check() == lock


def test_a_replaced_patch_that_has_changed_stops_the_lock(world: World) -> None:
    digest = hashlib.sha256(GOOD.encode()).hexdigest()
    with pytest.raises(LockError, match=r"recipe:fixes/x\.patch.* is another file at this pin") as error:
        both(world, {"fixes/x.patch": GOOD}, replacing(world, "0" * 64))
    assert digest in str(error.value.why)
    assert names(both(world, {"fixes/x.patch": GOOD}, replacing(world, digest))) == ["mine"]


def test_a_replaced_patch_has_to_be_there(world: World) -> None:
    with pytest.raises(LockError, match=r"recipe has no path fixes/none\.patch"):
        both(world, {"fixes/x.patch": GOOD}, replacing(world, "0" * 64, path="fixes/none.patch"))
    with pytest.raises(ManifestError, match=r"unknown component 'recpie'; did you mean 'recipe'"):
        both(world, {"fixes/x.patch": GOOD}, replacing(world, "0" * 64, **{"from": "recpie"}))


# -- paths of the code tree ------------------------------------------------------------------------------


def test_a_patch_in_the_paths_of_the_code_tree(world: World) -> None:
    """What `npu-rl diff` writes: the hint says where to list it."""
    entry = {**upstream(world), "take": takes(("pkg", "pkg"), ("setup.py", "tools/install.py"))}
    with pytest.raises(PatchError, match="paths that the component does not take") as error:
        patched(world, edit("tools/install.py", "@@ -1 +1 @@\n-s\n+t\n"), entry)
    assert "`tree: {patches: [...]}`" in str(error.value.hint)
    made = world.compose(world.locked({"up": entry}, tree={"patches": ["./x.patch"]}))
    assert made.code["tools/install.py"] == b"t\n"
    world.write("y.patch", edit("setup.py", "@@ -1 +1 @@\n-s\n+t\n"))
    assert "setup.py is not in the tree" in world.refused(
        {"up": entry}, PatchError, tree={"patches": ["./y.patch"]}
    )
    assert world.compose(locked(world, "./y.patch", entry=entry)).code["tools/install.py"] == b"t\n"
