"""Edit, commit, export, lock, setup: the same tree; what is refused changes nothing."""

from __future__ import annotations

import pytest

from npu_rl.stack.patches.series_file import with_names
from tests.export.conftest import LINES, Export
from tests.support import assert_told, ok, run_program

pytestmark = (
    pytest.mark.second
)  # each test has a stack of its own; test_whole_checkouts has the loop in the first


def test_commits_become_patches_that_give_the_same_tree(plain: Export) -> None:
    plain.write("lib/core.py", LINES.replace("line 5\n", "line five\n"))
    plain.commit("Count in words\n\nWhy: five is a word.\n", "lib/new.py", "NEW = 1\n")
    plain.commit("Two at the top\n\nPatch: up/top-two\n", "top.py", "T = 2\n")
    manifest = plain.manifest.read_text()
    done = ok(plain.export())
    assert "new        up: patches/up/0001-count-in-words.patch" in done.stdout
    assert "components:\n  up:\n    patches: [./patches/up]\n" in done.stdout
    assert plain.manifest.read_text() == manifest
    first = (plain.patches / "up/0001-count-in-words.patch").read_text()
    assert first.startswith(
        "Subject: Count in words\n\nWhy: five is a word.\n---\ndiff --git a/pkg/core.py b/pkg/core.py\n"
    )
    assert "new file mode" in first and "b/pkg/new.py" in first
    written = plain.round_trip()
    assert written["patches/up/series"] == b"0001-count-in-words.patch\n0002-top-two.patch\n"
    assert "Apply 0002-top-two to up" in plain.git("log", "--format=%s")


def test_the_loop_in_a_home_without_a_git_identity(plain: Export) -> None:
    plain.write("top.py", "T = 2\n")
    env = {name: value for name, value in plain.env.items() if not name.startswith("GIT_")}
    who = ("-c", "user.name=me", "-c", "user.email=me@example.com")
    ok(
        run_program(
            ["git", *who, "commit", "-qam", "Two"], env={**env, "GIT_CONFIG_NOSYSTEM": "1"}, cwd=plain.code
        )
    )
    assert "patches/up/0001-two.patch" in plain.round_trip()


WHY = "Why: the header of a patch stays when its hunks change.\n"
REWORDED = [
    ("Better\n\n{laid}", f"Subject: Better\n\n{WHY}"),
    (
        "Apply 0001-ten to up\n\n{laid}\nMy change\n\nIts body\n",
        f"Subject: Ten is X\n\n{WHY}\nMy change\n\nIts body\n",
    ),
]


@pytest.mark.parametrize(("message", "header"), REWORDED)
def test_a_reworded_commit_changes_what_the_user_wrote(patched: Export, message: str, header: str) -> None:
    at = patched.git("log", "--format=%H", "--grep", "Apply 0001-ten")
    message = message.format(laid=patched.git("log", "-1", "--format=%b", at))
    if "Patch: " not in message:
        message += "\n\nPatch: up/ten"
    patched.git("checkout", "-q", at)
    patched.git("commit", "-q", "--amend", "-m", message)
    patched.git("rebase", "-q", "--onto", "HEAD", at, "main")
    assert patched.round_trip()["patches/up/0001-ten.patch"].decode().startswith(f"{header}---\n")


def test_an_export_replaces_what_the_last_one_wrote(plain: Export) -> None:
    plain.commit("Four", text="S = 4\n")
    plain.enter(plain.states()["lines"])
    plain.git("commit", "-q", "--amend", "-m", "Quatre")
    assert plain.states()["removed"]
    assert plain.files() == ["0001-quatre.patch", "series"]
    plain.git("reset", "-q", "--hard", "HEAD^")
    assert plain.states()["removed"] and plain.files() == ["series"]
    plain.round_trip()


_MINE = "echo S=4 > lib/same.py; git commit -qam Mine"
_UP = "../../project/patches/up"
# What is done in `code`, whether it is exported, and what is done then by hand, or to a file of somebody else.
FOREIGN = {
    "0002-mine": (_MINE, True, f"sed -i '1iWhy: by hand' {_UP}/0002-mine.patch"),
    "0001-ten": (
        "at=$(git log --format=%H --grep 'Apply 0001'); git rebase -q --onto $at^ $at",
        False,
        f"sed -i '1iWhy: by hand' {_UP}/0001-ten.patch",
    ),
    "mine": (":", False, f"echo foreign > {_UP}/mine.patch; echo mine.patch >> {_UP}/series"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_somebody_else_is_refused_by_name(patched: Export, name: str) -> None:
    first, is_exported, then = FOREIGN[name]
    patched.do(first)
    if is_exported:
        ok(patched.export())
    patched.do(then)
    before = patched.beside()
    assert_told(patched.export(), f"{name.strip()}.patch is neither the lock's nor an earlier export's")
    assert patched.beside() == before


def test_a_failed_write_puts_everything_back(plain: Export) -> None:
    plain.commit("Another", text="S = 2\n")
    before = plain.beside()
    plain.patches.write_text("a file where the folder has to be\n")
    assert plain.export().returncode
    plain.patches.unlink()
    assert plain.beside() == before


_AMENDED = "echo S=12 > lib/same.py; git commit -qa --amend --no-edit"
# What is done in `code`, what is told of it, and the exit code.
BAD: dict[str, tuple[tuple[str, ...], int]] = {
    "echo S=9 > lib/same.py": (("in no commit", "lib/same.py", "git commit"), 3),
    "echo S=9 > lib/same.py; git commit -qa --fixup HEAD": (("is not squashed yet", "git rebase -i --autosquash"), 3),
    "git checkout -q --orphan fresh; git commit -qm all": (("The step `Pin up at", "is missing", "git reflog"), 3),
    _AMENDED: (("The step `Pin other at", "was changed", "git reset --soft "), 3),
    "git checkout -qb side; echo S=8 > lib/same.py; git commit -qam side; git checkout -q main; "
    "echo T=8 > top.py; git commit -qam top; git merge -q side": (("is a merge", "git rebase "), 3),
    "for s in 8 9; do echo S=$s > lib/same.py; git commit -qam $s; done; "
    "git -c sequence.editor='sed -i 1s/pick/edit/' rebase -qi HEAD~2": (
        ("in the middle of `git rebase`", "git rebase --continue"), 3,
    ),
    "printf '\\0\\1' > lib/data.bin; git add -A; git commit -qm bytes": (
        ("can't be written as a patch", "binary", "git commit --amend"), 1,
    ),
    "echo S=10 > lib/same.py; pin=$(git log --format=%H --grep 'Pin other'); git commit -qa --fixup $pin; "
    "git -c sequence.editor=: rebase -qi --autosquash $pin^": (("The step `Pin other at", "was changed"), 3),
    "echo S=11 > lib/same.py; git commit -qam Eleven -m 'Patch: other/eleven'": (
        ("`Patch: other/eleven` fits no patch of its commit",), 1,
    ),
    "sed -i '0,/refs.heads.main/s##refs/tags/v9#' ../../project/m.yaml": (
        ("has changed since the workspace was set up", "of up"), 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("script", BAD)
def test_bad_input_is_named_and_nothing_is_written(plain: Export, script: str) -> None:
    plain.do(script)
    before, head = plain.beside(), plain.git("rev-parse", "HEAD")
    words, code = BAD[script]
    assert_told(plain.export(), *words, code=code)
    assert (plain.beside(), plain.git("rev-parse", "HEAD")) == (before, head)


def test_a_bundled_manifest_is_never_written(plain: Export) -> None:
    done = plain.run("patches", "export", "-m", "quickstart", "-w", plain.workspace)
    assert_told(done, "quickstart is a bundled manifest", "extends: quickstart")


def test_setup_stops_for_work_that_the_lock_does_not_have(plain: Export) -> None:
    plain.commit("Fourteen", text="S = 14\n")
    for command in ("verify", "status"):
        done = plain.run(command, "-w", plain.workspace)
        assert "code: 1 commit of your own" in done.stdout and "npu-rl patches export" in done.stdout
    plain.git("branch", "other-idea")
    plain.enter(plain.states()["lines"])
    plain.git("checkout", "-q", "other-idea")
    plain.commit("Fifteen", text="S = 15\n")
    plain.git("checkout", "-q", "main")
    ok(plain.run("lock", "-m", plain.manifest))
    assert_told(plain.run("setup", "-m", plain.manifest, "-w", plain.workspace), "branch other-idea", code=3)
    plain.git("branch", "-qD", "other-idea")
    ok(plain.run("setup", "-m", plain.manifest, "-w", plain.workspace))
    (kept,) = (plain.workspace / ".npu-rl/kept").iterdir()
    assert (kept / "git/code/HEAD").is_file()


def test_a_series_keeps_its_comments() -> None:
    text = "# All.\n0001-a.patch\n# why b\n0002-b.patch  # mine\n# end\n"
    names = ["0001-a.patch", "0002-b.patch"]
    assert with_names(text, names) == text
    assert with_names(text, [*names, "0003-c.patch"]) == text.replace("# mine\n", "# mine\n0003-c.patch\n")
    assert with_names(text, ["0002-b.patch"]) == "# All.\n# why b\n0002-b.patch  # mine\n# end\n"
    assert with_names("", ["0001-a.patch"]) == "0001-a.patch\n"
