"""What a history may be: fixed-up patches, splits, names; what is refused, with nothing changed."""

from __future__ import annotations

import json
import re

import pytest

from tests.export.conftest import LINES, TEN, Export
from tests.support import assert_told, ok


def fixed_up(stack: Export, **change: str) -> None:
    """Change files in the commit of 0001-ten, as a person does."""
    at = stack.git("log", "--format=%H", "--grep", "Apply 0001-ten")
    for path, text in change.items():
        stack.write(path.replace("__", "/").replace("_py", ".py"), text)
    stack.git("add", "-A")
    stack.git("commit", "-q", "--fixup", at)
    assert_told(stack.export(), "is not squashed yet", f"git rebase -i --autosquash {at[:12]}^", code=3)
    stack.git("-c", "sequence.editor=:", "rebase", "-qi", "--autosquash", f"{at}^")


def test_a_fixup_refreshes_the_patch_and_keeps_its_header(patched: Export) -> None:
    core = LINES.replace("line 10\n", "line X\n")
    fixed_up(patched, lib__core_py=core.replace("line 20\n", "line XX\n"))
    patched.write("lib/same.py", "S = 2\n")
    patched.commit("Two")
    tree = patched.tree()
    done = ok(patched.export())
    assert "changed    up: patches/up/0001-ten.patch" in done.stdout
    text = (patched.patches / "up/0001-ten.patch").read_text()
    assert text.startswith(TEN.partition("---")[0].rstrip() + "\n---\n") and "+line XX" in text
    assert (patched.patches / "up/series").read_text() == "# In order.\n0001-ten.patch\n0002-two.patch\n"
    before = patched.beside()
    ok(patched.export())
    assert patched.beside() == before
    patched.lay()
    assert patched.tree() == tree


def test_a_commit_over_two_components_is_split_and_reported(plain: Export) -> None:
    plain.write("lib/same.py", "S = 3\n")
    plain.write("other/deep/leaf.py", "L = 1\n")
    plain.write("new_at_the_top.txt", "of no component\n")
    plain.commit("Everywhere at once\n\nPatch: other/leaf\n")
    tree = plain.tree()
    body = json.loads(ok(plain.export("--json")).stdout)
    assert [sorted(row["components"]) for row in body["split"]] == [["other", "tree", "up"]]
    paths = {row["component"]: row["path"] for row in body["patches"]}
    assert paths == {
        "up": "patches/up/0001-everywhere-at-once.patch",
        "other": "patches/other/0001-leaf.patch",
        "tree": "patches/tree/0001-everywhere-at-once.patch",
    }
    plain.lay()
    assert plain.tree() == tree


def test_an_export_replaces_what_the_last_one_wrote(plain: Export) -> None:
    plain.write("lib/same.py", "S = 4\n")
    plain.commit("Four")
    ok(plain.export())
    plain.git("commit", "-q", "--amend", "-m", "Quatre")
    done = ok(plain.export())
    assert "removed" in done.stdout
    assert (plain.patches / "up/series").read_text() == "0001-quatre.patch\n"
    assert [p.name for p in sorted((plain.patches / "up").iterdir())] == ["0001-quatre.patch", "series"]
    plain.lay()


def test_settings_of_the_user_change_no_byte(plain: Export) -> None:
    plain.write("lib/core.py", LINES.replace("line 20\n", "line twenty\n"))
    plain.commit("Twenty")
    home = plain.root / "machine/home"
    (home / ".gitconfig").write_text(
        "[diff]\n\tcontext = 9\n\tnoprefix = true\n\tmnemonicPrefix = true\n\talgorithm = patience\n"
        "\texternal = false\n[core]\n\tabbrev = 5\n\tquotePath = false\n[format]\n\tsignature = me\n"
    )
    plain.git("config", "diff.context", "0")
    ok(plain.export())
    text = (plain.patches / "up/0001-twenty.patch").read_text()
    index = next(line for line in text.splitlines() if line.startswith("index "))
    assert len(index) == len("index ") + 40 + 2 + 40 + len(" 100644")
    assert "@@ -17,7 +17,7 @@" in text and text.endswith(" line 23\n")


def dirty(stack: Export) -> None:
    stack.write("lib/same.py", "S = 9\n")


def untracked(stack: Export) -> None:
    stack.write("lib/stray.py", "x = 1\n")


def two_names(stack: Export) -> None:
    for text in ("S = 5\n", "S = 6\n"):
        stack.write("lib/same.py", text)
        stack.commit("The same name")


def between(stack: Export) -> None:
    stack.write("lib/same.py", "S = 7\n")
    stack.commit("Too early")
    ours = stack.git("rev-parse", "HEAD")
    steps = stack.git("log", "--reverse", "--format=%H", "HEAD^").split()
    stack.git("checkout", "-q", steps[0])
    for commit in (ours, *steps[1:]):
        stack.git("cherry-pick", commit)


def rewritten(stack: Export) -> None:
    stack.git("checkout", "-q", "--orphan", "fresh")
    stack.git("commit", "-qm", "All in one")


def merged(stack: Export) -> None:
    stack.git("checkout", "-qb", "side")
    stack.write("lib/same.py", "S = 8\n")
    stack.commit("Side")
    stack.git("checkout", "-q", "main")
    stack.write("top.py", "T = 8\n")
    stack.commit("Main")
    stack.git("merge", "-q", "side")


TREE_PATCH = """\
--- a/lib/core.py
+++ b/lib/core.py
@@ -29,3 +29,3 @@
 line 29
-line 30
+line 300
 line 31
"""


def binary(stack: Export) -> None:
    (stack.code / "lib/data.bin").write_bytes(bytes(range(256)))
    stack.commit("Bytes")


def attributes(stack: Export) -> None:
    stack.write("lib/.gitattributes", "*.py -diff\n")
    stack.commit("Attributes")


def pin_changed(stack: Export) -> None:
    stack.write("lib/same.py", "S = 10\n")
    stack.git("add", "-A")
    pin = stack.git("log", "--format=%H", "--grep", "Pin other")
    stack.git("commit", "-q", "--fixup", pin)
    stack.git("-c", "sequence.editor=:", "rebase", "-qi", "--autosquash", f"{pin}^")


def amended(stack: Export) -> None:
    stack.git("commit", "-q", "--amend", "-m", "Another message")


def amended_with_a_change(stack: Export) -> None:
    stack.write("lib/same.py", "S = 12\n")
    stack.git("commit", "-qa", "--amend", "--no-edit")


def bad_trailer(stack: Export) -> None:
    stack.write("lib/same.py", "S = 11\n")
    stack.commit("Eleven\n\nPatch: other/eleven\n")


def moved_ref(stack: Export) -> None:
    stack.manifest.write_text(stack.manifest.read_text().replace("refs/heads/main", "refs/tags/v9", 1))


@pytest.mark.parametrize(
    ("make", "words", "code"),
    [
        (dirty, ("in no commit", "modified   code/lib/same.py", "git commit"), 3),
        (untracked, ("in no commit", "untracked  code/lib/stray.py"), 3),
        (two_names, ("Two commits give the patch up/the-same-name",), 1),
        (between, ("is between npu-rl's own steps", "before `Pin other at"), 3),
        (rewritten, ("The step `Pin up at", "is missing", "All in one is in its place", "git reflog"), 3),
        (amended, ("is missing", "Another message is in its place", "git reset --soft "), 3),
        (amended_with_a_change, ("The step `Pin other at", "was changed", "git reset --soft "), 3),
        (merged, ("is a merge",), 3),
        (binary, ("can't be written as a patch", "binary", "out of the commit: git commit --amend"), 1),
        (attributes, ("can't be written as a patch", "out of the commit: git commit --amend"), 1),
        (pin_changed, ("The step `Pin other at", "was changed"), 3),
        (bad_trailer, ("`Patch: other/eleven` fits no patch of its commit",), 1),
        (moved_ref, ("has changed since the workspace was set up", "`ref:` of up"), 3),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(
    plain: Export, make: object, words: tuple[str, ...], code: int
) -> None:
    assert callable(make)
    make(plain)
    before, head = plain.beside(), plain.git("rev-parse", "HEAD")
    assert_told(plain.export(), *words, code=code)
    assert plain.beside() == before
    assert plain.git("rev-parse", "HEAD") == head


def test_the_command_after_an_amended_step_splits_it(plain: Export) -> None:
    amended_with_a_change(plain)
    told = plain.export()
    command = re.search(r"git (reset --soft [0-9a-f]{12}); git commit", told.stderr)
    assert command is not None, told.stderr
    plain.git(*command[1].split())
    plain.commit("Twelve")
    assert "+S = 12\n" in plain.round_trip()["patches/up/0001-twelve.patch"].decode()


def test_setup_verify_and_status_name_commits_and_the_command(plain: Export) -> None:
    plain.write("lib/same.py", "S = 13\n")
    plain.commit("Thirteen")
    (plain.code / "lib/__init__.py").write_text("")
    for args in (("verify", "-w", plain.workspace), ("status", "-w", plain.workspace)):
        done = plain.run(*args)
        assert "code: 1 commit of your own" in done.stdout and "npu-rl patches export" in done.stdout
    body = json.loads(plain.run("status", "-w", plain.workspace, "--json").stdout)
    assert any("1 commit of your own" in line for line in body["own_work"])
    done = plain.run("setup", "-m", plain.manifest, "-w", plain.workspace)
    assert_told(done, "code: 1 commit of your own", "npu-rl patches export", code=3)


def test_a_patch_that_gets_a_change_of_another_component_is_split_under_the_name_of_a_trailer(
    plain: Export,
) -> None:
    plain.write("lib/same.py", "S = 2\n")
    plain.write("other/__init__.py", "O = 2\n")
    plain.commit("Both")
    plain.round_trip()
    plain.write("lib/same.py", "S = 3\n")
    at = plain.git("log", "--format=%H", "--grep", "Apply 0001-both to other")
    message = plain.git("log", "-1", "--format=%B", at)
    plain.git("commit", "-qa", "--amend", "-m", message)
    assert_told(plain.export(), "Two commits give the patch up/both", "Patch: up/SLUG", code=1)
    plain.git("commit", "-qa", "--amend", "-m", f"{message}\nPatch: up/third\n")
    assert "Apply 0001-both to other: up, other" in ok(plain.export()).stdout
    assert "patches/up/0002-third.patch" in plain.round_trip()


def test_a_file_of_a_components_patch_and_of_one_of_the_tree(patched: Export) -> None:
    """The export refused the component's patch, which it took for one of the tree, even without any commit."""
    (patched.manifest.parent / "t.patch").write_text(TREE_PATCH)
    patched.manifest.write_text(patched.manifest.read_text() + "tree: {patches: [./t.patch]}\n")
    patched.lay()
    before = patched.beside()
    assert "nothing to write" in ok(patched.export()).stdout
    assert patched.beside() == before
    at = patched.git("log", "--format=%H", "--grep", "Apply 0001-ten")
    patched.write("lib/core.py", (patched.code / "lib/core.py").read_text().replace("line 1\n", "line 0\n"))
    patched.git("commit", "-qa", "--fixup", at)
    patched.git("-c", "sequence.editor=:", "rebase", "-qi", "--autosquash", f"{at}^")
    written = patched.round_trip()
    assert "+line 0\n" in written["patches/up/0001-ten.patch"].decode()
    assert written["t.patch"] == before["t.patch"]
    patched.write("lib/core.py", (patched.code / "lib/core.py").read_text().replace("line 20\n", "line 2X\n"))
    patched.commit("Twenty")
    assert "patches/tree/0001-twenty.patch" in patched.round_trip()


@pytest.mark.parametrize("way", ["project/../w", "link"])
def test_setup_adopts_the_tree_by_any_path_of_the_workspace(plain: Export, way: str) -> None:
    (plain.root / "link").symlink_to(plain.workspace)
    plain.write("lib/same.py", "S = 16\n")
    plain.commit("Sixteen")
    tree = plain.tree()
    ok(plain.export())
    ok(plain.run("lock", "-m", plain.manifest))
    ok(plain.run("setup", "-m", plain.manifest, "-w", plain.root / way))
    assert plain.tree() == tree


def test_setup_stops_for_work_that_the_lock_does_not_have(plain: Export) -> None:
    plain.write("lib/same.py", "S = 14\n")
    plain.commit("Fourteen")
    plain.git("branch", "other-idea")
    ok(plain.export())
    plain.git("checkout", "-q", "other-idea")
    plain.write("lib/same.py", "S = 15\n")
    plain.commit("Fifteen")
    plain.git("checkout", "-q", "main")
    ok(plain.run("lock", "-m", plain.manifest))
    done = plain.run("setup", "-m", plain.manifest, "-w", plain.workspace)
    assert_told(done, "branch other-idea", code=3)
    plain.git("branch", "-qD", "other-idea")
    ok(plain.run("setup", "-m", plain.manifest, "-w", plain.workspace))
    (kept,) = (plain.workspace / ".npu-rl/kept").iterdir()
    assert (kept / "git/code/HEAD").is_file()
