"""Edit, commit, export, lock, setup: the same tree, and nothing is lost."""

from __future__ import annotations

import pytest

from tests.export.conftest import LINES, Export
from tests.support import assert_told, ok


def test_commits_become_patches_that_give_the_same_tree(plain: Export) -> None:
    plain.write("lib/core.py", LINES.replace("line 5\n", "line five\n"))
    plain.write("lib/new.py", "NEW = 1\n")
    plain.commit("Count in words\n\nWhy: five is a word.\n")
    plain.write("top.py", "T = 2\n")
    plain.commit("Two at the top\n\nPatch: up/top-two\n")
    tree = plain.tree()
    done = ok(plain.export())
    assert "up: patches/up/0001-count-in-words.patch" in done.stdout
    first = (plain.patches / "up/0001-count-in-words.patch").read_text()
    assert first.startswith(
        "Subject: Count in words\n\nWhy: five is a word.\n---\ndiff --git a/pkg/core.py b/pkg/core.py\n"
    )
    assert "new file mode" in first and "b/pkg/new.py" in first
    assert (plain.patches / "up/series").read_text() == "0001-count-in-words.patch\n0002-top-two.patch\n"
    text = plain.manifest.read_text()
    assert "    patches: [./patches/up]\n    take:\n" in text and "# as in verl-npu's layout" in text
    before = plain.beside()
    assert "nothing to write" in ok(plain.export()).stdout
    assert plain.beside() == before
    plain.lay()
    assert plain.tree() == tree
    assert "Apply 0002-top-two to up" in plain.git("log", "--format=%s")
    ok(plain.run("verify", "-w", plain.workspace))
    before = plain.beside()
    assert "nothing to write" in ok(plain.export()).stdout
    assert plain.beside() == before


REWORDED = [
    ("Better\n\n{laid}", "Subject: Better\n\nWhy: the header of a patch stays when its hunks change.\n"),
    ("Better", "Subject: Better\n\nWhy: the header of a patch stays when its hunks change.\n"),
    ("Better\n\nWhy: it is.\n\nPatch: up/ten\n", "Subject: Better\n\nWhy: it is.\n"),
    (
        "Apply 0001-ten to up\n\n{laid}\nMy change\n\nIts body\n",
        "Subject: Ten is X\n\nWhy: the header of a patch stays when its hunks change.\n\nMy change\n\nIts body\n",
    ),
    ("Apply 0001-ten to up\n\n{laid}\nWhy: new\n", "Subject: Ten is X\n\nWhy: new\n"),
]


@pytest.mark.parametrize(("message", "header"), REWORDED)
def test_a_reworded_commit_changes_what_the_user_wrote(patched: Export, message: str, header: str) -> None:
    """Setup's lines became the header, and the patch's own was gone."""
    at = patched.git("log", "--format=%H", "--grep", "Apply 0001-ten")
    laid = patched.git("log", "-1", "--format=%b", at)
    message = message.format(laid=laid)
    if "Patch: " not in message:
        message += "\n\nPatch: up/ten"
    patched.git("checkout", "-q", at)
    patched.git("commit", "-q", "--amend", "-m", message)
    patched.git("rebase", "-q", "--onto", "HEAD", at, "main")
    written = patched.round_trip()["patches/up/0001-ten.patch"].decode()
    assert written.startswith(f"{header}---\n")


def test_a_header_that_was_edited_in_an_exported_file_stays(plain: Export) -> None:
    """It was refused, with hints that led in a circle: export, lock, setup, export."""
    plain.write("top.py", "T = 2\n")
    plain.commit("Two at the top")
    ok(plain.export())
    first = plain.patches / "up/0001-two-at-the-top.patch"
    edited = first.read_text().replace(
        "Subject: Two at the top\n", "Subject: Two\n\nWhy: one is not enough.\n"
    )
    first.write_text(edited)
    plain.write("lib/new.py", "NEW = 1\n")
    plain.commit("New")
    tree = plain.tree()
    ok(plain.export())
    assert first.read_text() == edited
    plain.lay()
    assert plain.tree() == tree
    assert "nothing to write" in ok(plain.export()).stdout


def test_an_edited_header_stays_when_the_patch_gets_another_number(plain: Export) -> None:
    for number in (5, 15, 25):
        core = (plain.code / "lib/core.py").read_text()
        plain.write("lib/core.py", core.replace(f"line {number}\n", f"line X{number}\n"))
        plain.commit(f"Change {number}")
    ok(plain.export())
    second = plain.patches / "up/0002-change-15.patch"
    second.write_text(second.read_text().replace("---\n", "\nWhy: by hand.\n---\n", 1))
    header = "Subject: Change 15\n\nWhy: by hand.\n---\ndiff --git "
    plain.git("checkout", "-q", "HEAD~2")
    plain.write("lib/core.py", f"line 0\n{(plain.code / 'lib/core.py').read_text()}")
    plain.git("commit", "-qa", "--amend", "--no-edit")
    plain.git("rebase", "-q", "--onto", "HEAD", "main~2", "main")
    ok(plain.export())
    assert second.read_text().startswith(header) and "@@ -13,7 +13,7 @@" in second.read_text()
    plain.git("rebase", "-q", "--onto", "HEAD~3", "HEAD~2")
    before = plain.round_trip()
    assert before["patches/up/0001-change-15.patch"].decode().startswith(header)
    assert [name for name in before if name.endswith(".patch")] == [
        "patches/up/0001-change-15.patch",
        "patches/up/0002-change-25.patch",
    ]


def test_a_reworded_new_commit_gives_a_new_header_before_the_lock(plain: Export) -> None:
    plain.write("top.py", "T = 2\n")
    plain.commit("Two at the top\n\nPatch: up/two\n")
    ok(plain.export())
    plain.git("commit", "-q", "--amend", "-m", "Two\n\nWhy: one is not enough.\n\nPatch: up/two\n")
    written = plain.round_trip()["patches/up/0001-two.patch"].decode()
    assert written.startswith("Subject: Two\n\nWhy: one is not enough.\n---\n")


def test_an_edited_file_whose_commit_is_gone_is_named(plain: Export) -> None:
    plain.write("top.py", "T = 2\n")
    plain.commit("Two at the top")
    ok(plain.export())
    first = plain.patches / "up/0001-two-at-the-top.patch"
    first.write_text(f"Why: by hand\n{first.read_text()}")
    before = plain.beside()
    plain.git("reset", "-q", "--hard", "HEAD^")
    assert_told(plain.export(), "was changed by hand after an export had written it", "remove the file")
    assert plain.beside() == before
    first.unlink()
    ok(plain.export())
    assert (plain.patches / "up/series").read_text() == ""


def test_a_diff_that_was_edited_in_an_exported_file_is_refused(plain: Export) -> None:
    plain.write("top.py", "T = 2\n")
    plain.commit("Two at the top")
    ok(plain.export())
    first = plain.patches / "up/0001-two-at-the-top.patch"
    first.write_text(first.read_text().replace("+T = 2", "+T = 3"))
    before = plain.beside()
    plain.write("lib/new.py", "NEW = 1\n")
    plain.commit("New")
    assert_told(
        plain.export(), "was changed by hand after an export had written it", "git commit --amend", code=1
    )
    assert plain.beside() == before
