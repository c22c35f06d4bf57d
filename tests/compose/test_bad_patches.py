"""Every patch that may not be applied: a clear error that names it and the hunk, and nothing is changed."""

from __future__ import annotations

import pytest

from npu_rl.common.errors import PatchError
from tests.resolve.world import World, component, takes
from tests.support import File

LINES = [f"line {n}" for n in range(1, 61)]
LINES[9:13] = ["def one():", "\tx = 1", "\treturn x", ""]
LINES[29:33] = ["def twin():", "    y = 1", "    return y", ""]
LINES[49:53] = ["def twin():", "    y = 1", "    return y", ""]
CONTENT = "".join(f"{line}\n" for line in LINES)


def hunk(at: int, *lines: str, to: int | None = None) -> str:
    """A hunk at a line: its counts are those of the lines."""
    old = sum(line[0] != "+" for line in lines)
    new = sum(line[0] != "-" for line in lines)
    return f"@@ -{at},{old} +{to or at},{new} @@\n" + "".join(f"{line}\n" for line in lines)


def edit(path: str, *hunks: str) -> str:
    return f"--- a/{path}\n+++ b/{path}\n" + "".join(hunks)


GOOD = edit("pkg/a.py", hunk(2, " line 2", "-line 3", "+LINE 3", " line 4"))
FIRST = hunk(2, " line 2", "-line 3", "+LINE 3", " line 4")  # applies; the second hunk is what is wrong

DOES_NOT_APPLY: dict[str, tuple[str, list[str]]] = {
    "at an offset only": (
        edit("pkg/a.py", FIRST, hunk(40, " line 42", "-line 43", "+LINE", " line 44")),
        ["hunk 2 of pkg/a.py (patch line 8)", "fits at line 42 only, +2 lines"],
    ),
    "with ignored white space": (
        edit("pkg/a.py", FIRST, hunk(10, " def one():", "-    x = 1", "+    x = 2", "     return x")),
        [
            "hunk 2 of pkg/a.py",
            "Only white space differs at line 10",
            "Expected (-) and found (+)",
            "found",
            "-····x·=·1",
            "+→x·=·1",
        ],
    ),
    "context twice": (
        edit("pkg/a.py", hunk(40, " def twin():", "-    y = 1", "+    y = 2", "     return y")),
        ["hunk 1 of pkg/a.py", "does not fit at line 40, but at 2 others: 30, 50"],
    ),
    "already applied": (
        edit("pkg/a.py", hunk(2, " line 2", "-LINE 3", "+line 3", " line 4")),
        ["hunk 1 of pkg/a.py", "already there, at line 2", "remove the patch"],
    ),
    "other lines": (
        edit("pkg/a.py", FIRST, hunk(22, " line 22", "-line two dozens", "+x", " line 24", " line 25")),
        [
            "hunk 2 of pkg/a.py (patch line 8)",
            "The most similar place is line 22",
            "Expected (-) and found (+)",
            "@@ line 22 @@\n",
            "-line two dozens",
            "+line 23",
        ],
    ),
    "nothing alike": (
        edit("pkg/a.py", hunk(5, " %%%%", "-§§§§§", "+x", " &&&&&")),
        ["hunk 1 of pkg/a.py", "Nothing in the file is similar to the lines expected at line 5"],
    ),
    "two hunks": (
        edit(
            "pkg/a.py",
            hunk(2, " line 2", "-line three", "+x", " line 4"),
            hunk(20, " line 20", "-line twenty-one", "+x", " line 22"),
        ),
        ["hunk 1 of pkg/a.py", "hunk 2 of pkg/a.py", "line three", "line twenty-one"],
    ),
    "a file that is not there": (edit("pkg/absent.py", FIRST), ["pkg/absent.py is not in the tree"]),
    "a file where a folder is": (edit("pkg/sub", FIRST), ["pkg/sub is not in the tree"]),
    "a file that is there": (
        "--- /dev/null\n+++ b/pkg/a.py\n@@ -0,0 +1 @@\n+new\n",
        ["pkg/a.py is created by the patch but already exists"],
    ),
    "a deletion of something else": (
        "--- a/pkg/sub/b.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-not b\n",
        ["hunk 1 of pkg/sub/b.py", "Nothing in the file is similar"],
    ),
    "a deletion of a part": (
        "--- a/pkg/a.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-line 1\n-line 2\n",
        ["hunk 1 of pkg/a.py", "only fits the end of the file"],
    ),
    "no newline where there is one": (
        "--- a/pkg/sub/b.py\n+++ b/pkg/sub/b.py\n@@ -1 +1 @@\n-b\n\\ No newline at end of file\n+c\n",
        ["hunk 1 of pkg/sub/b.py", "⟨no newline⟩"],
    ),
    "outside of what is taken": (
        GOOD + edit("setup.py", "@@ -1 +1 @@\n-s\n+t\n"),
        ["changes paths that the component does not take", "setup.py", "`checkout: full`"],
    ),
    "through a symbolic link": (
        edit("pkg/link/b.py", "@@ -1 +1 @@\n-b\n+c\n"),
        ["pkg/link/b.py would be written through a symbolic link"],
    ),
    "a new file through a symbolic link": (
        "--- /dev/null\n+++ b/pkg/link/new.py\n@@ -0,0 +1 @@\n+new\n",
        ["pkg/link/new.py would be written through a symbolic link"],
    ),
    "a symbolic link itself": (
        edit("pkg/link", "@@ -1 +1 @@\n-sub\n\\ No newline at end of file\n+/etc\n"),
        ["pkg/link is a symbolic link, and a patch can change only files"],
    ),
}

# How each file of tests/patches/bad is refused, test_parse has; these show that `lock` refuses and keeps nothing.
NOT_ALLOWED: dict[str, tuple[str | bytes, str]] = {
    "into .git": (edit("pkg/.git/config", "@@ -1 +1 @@\n-s\n+t\n"), "It reaches into `.git`"),
    "CRLF": (GOOD.replace("\n", "\r\n"), "CR"),
    "UTF-16": (GOOD.encode("utf-16"), "byte-order mark"),
    "an empty file": ("", "patch"),
}


def upstream(world: World) -> dict[str, object]:
    up = world.upstream(
        {
            "pkg/a.py": CONTENT,
            "pkg/sub/b.py": "b\n",
            "pkg/link": File("sub", mode="120000"),
            "setup.py": "s\n",
        }
    )
    return component(up, up.id("main"))


def refuse(world: World, patch: str | bytes) -> str:
    """Lock with the patch, which is refused by name."""
    world.write("0002-bad.patch", patch)
    message = world.refused({"up": {**upstream(world), "patches": ["./0002-bad.patch"]}}, PatchError)
    assert not list((world.root / "store" / "tmp").iterdir())
    assert "0002-bad" in message
    assert "next:" in message or "why:" in message
    return message


def test_store_and_earlier_lock_are_as_before(world: World) -> None:
    world.write("0001-good.patch", GOOD)
    before = world.locked({"up": {**upstream(world), "patches": ["./0001-good.patch"]}})
    assert before.components["up"].patches[0].name == "0001-good"
    lock, units = world.root / "project" / "m.lock.json", world.root / "store" / "units"
    kept = lock.read_bytes(), sorted(path.name for path in units.iterdir())
    refuse(world, DOES_NOT_APPLY["context twice"][0])
    assert (lock.read_bytes(), sorted(path.name for path in units.iterdir())) == kept


@pytest.mark.parametrize("what", DOES_NOT_APPLY)
def test_a_patch_that_does_not_apply(world: World, what: str) -> None:
    patch, says = DOES_NOT_APPLY[what]
    message = refuse(world, patch)
    for text in says:
        assert text in message, message


@pytest.mark.parametrize("what", NOT_ALLOWED)
def test_a_patch_that_is_not_allowed(world: World, what: str) -> None:
    patch, says = NOT_ALLOWED[what]
    message = refuse(world, patch)
    assert says in message, message


def test_the_tree_is_patched_as_strictly(world: World) -> None:
    entry = upstream(world)
    world.write("t.patch", DOES_NOT_APPLY["context twice"][0])
    assert "t does not apply to tree" in world.refused(
        {"up": {**entry, "take": takes(("pkg", "pkg"))}}, PatchError, tree={"patches": ["./t.patch"]}
    )
