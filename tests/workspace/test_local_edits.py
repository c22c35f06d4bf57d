"""Local work is never lost: not by a setup that stops, not by one that is told to go on, not by a late edit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from npu_rl.common.disk import remove_tree
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.support import assert_told, ok
from tests.workspace.stack import Stack, found, git_in, leftovers, unchanged


def kept(paths: WorkspacePaths) -> Path:
    """The one folder of things that were put aside."""
    (folder,) = paths.kept.iterdir()
    return folder


def work(paths: WorkspacePaths, stack: Stack, script: str) -> None:
    """What a person does in `code`, in a shell."""
    git_in(paths.code, stack.env, "-c", f"alias.work=!set -eu; unset GIT_DIR GIT_PREFIX; {script}; :", "work")


# -- files ---------------------------------------------------------------------------------------------

# What is done in `code`, and the path in the workspace of the work that is found.
FILES = {
    "mkdir -p beta/__pycache__; echo mine > beta/__pycache__/thesis.pyc": "code/beta/__pycache__/thesis.pyc",
    "mkdir -p 'outputs/log größe\nx'; echo mine > 'outputs/log größe\nx/y.txt'": "code/outputs/log größe\nx/y.txt",
    "echo mine > ../src/gamma/build.log": "src/gamma/build.log",
    "mkdir '../src/my project'; echo mine > '../src/my project/thesis.tex'": "src/my project/thesis.tex",
    "mkdir beta/.git; echo mine > beta/.git/HEAD": "code/beta/.git/HEAD",
    "echo mine > beta/b.py": "code/beta/b.py",
    "chmod 755 beta/b.py": "code/beta/b.py",
    "ln -sf ../alpha/core.py beta/b.py": "code/beta/b.py",
    "rm beta/b.py; mkdir beta/b.py; echo mine > beta/b.py/mine.txt": "code/beta/b.py/mine.txt",
    "echo export MINE=1 >> ../activate": "activate",
    "rm .git; git init -q; git add beta; git commit -qm mine": "code/.git/HEAD",
}


@pytest.fixture(params=FILES)
def mine(request: pytest.FixtureRequest, paths: WorkspacePaths, stack: Stack) -> str:
    """The path of work that was done."""
    work(paths, stack, request.param)
    return FILES[request.param]


def test_work_stops_a_setup_and_discard_moves_it_aside(
    stack: Stack, paths: WorkspacePaths, mine: str
) -> None:
    with unchanged(paths.root):
        done = stack.lay(paths.root, stack.new)
        assert_told(done, "that setup would replace", "--discard", code=3)
        assert mine.split("/")[1 if "/" in mine else 0] in done.stderr
    before = (paths.root / mine).lstat()
    done = ok(stack.lay(paths.root, stack.new, "--discard"))
    assert str(kept(paths)) in done.stdout
    now = (kept(paths) / mine).lstat()
    assert (now.st_ino, now.st_mode, now.st_size) == (before.st_ino, before.st_mode, before.st_size)
    assert found(paths, deep=True) == []
    assert leftovers(paths.root) == []


@pytest.mark.parametrize("gone", ["code/beta", "src/gamma/build.txt", "code"])
def test_what_was_deleted_is_no_work_and_comes_back(stack: Stack, paths: WorkspacePaths, gone: str) -> None:
    remove_tree(paths.root / gone)
    assert "is ready" in ok(stack.lay(paths.root)).stdout
    assert found(paths, deep=True) == []
    assert not paths.kept.exists()


def test_edits_that_the_new_lock_contains(stack: Stack, paths: WorkspacePaths) -> None:
    """As in alpha 2, and in delta; another edit stops the setup all the same."""
    work(paths, stack, "echo 'A = 2' > alpha/same_a.py; mkdir delta; echo 'D = 1' > delta/__init__.py")
    b = (paths.code / "beta/b.py").read_text()
    (paths.code / "beta/b.py").write_text("B = 3\n")
    done = stack.lay(paths.root, stack.new)
    assert_told(done, "1 local change that setup would replace", code=3)
    assert "alpha/same_a.py" not in done.stderr
    (paths.code / "beta/b.py").write_text(b)
    ok(stack.lay(paths.root, stack.new))
    assert found(paths, deep=True) == []
    assert not paths.kept.exists()


def test_links_out_of_the_workspace_are_moved_not_followed(
    stack: Stack, paths: WorkspacePaths, tmp_path: Path
) -> None:
    """What a link leads to belongs to somebody else: it is neither moved nor removed."""
    mine = tmp_path / "my own"
    (mine / "gamma").mkdir(parents=True)
    (mine / "gamma/thesis.tex").write_text("mine")
    (mine / "code.txt").write_text("mine")
    for place in (paths.code, paths.root / "src"):
        shutil.rmtree(place)
        place.symlink_to(mine)
    with unchanged(mine):
        assert stack.lay(paths.root, stack.new).returncode == 3
        ok(stack.lay(paths.root, stack.new, "--discard"))
    assert (kept(paths) / "code").readlink() == (kept(paths) / "src").readlink() == mine
    assert found(paths, deep=True) == []


@pytest.mark.parametrize("damage", ["", '{"digest":"' + "0" * 64 + '"}'])
def test_without_a_receipt_everything_may_be_work(stack: Stack, paths: WorkspacePaths, damage: str) -> None:
    (paths.code / "beta/b.py").write_text("B = 'mine'\n")
    paths.receipt.write_text(damage)
    with unchanged(paths.root):
        for manifest in (stack.old, stack.new):
            assert_told(stack.lay(paths.root, manifest), "code/", code=3)
    ok(stack.lay(paths.root, stack.old, "--discard"))
    assert (kept(paths) / "code/beta/b.py").read_text() == "B = 'mine'\n"
    assert (kept(paths) / "git/code/HEAD").is_file()
    assert found(paths, deep=True) == []


# -- git -----------------------------------------------------------------------------------------------

_COMMIT = "echo mine > beta/b.py; git commit -qam mine"
_ON_A_BRANCH = f"git checkout -qb mine; {_COMMIT}; git checkout -q main"
# What is done in `code`, and what is told of it.
HISTORIES = {
    _COMMIT: "branch main",
    "cd ../src/gamma; echo mine > build.txt; git commit -qam mine": "src/gamma: branch main",
    _ON_A_BRANCH: "branch mine",
    f"{_COMMIT}; git reset -q --hard HEAD^": "1 commit of your own",
    f"git checkout -q --detach; {_COMMIT}; git checkout -q main": "1 commit of your own",
    f"git worktree add -q --detach ../other; cd ../other; {_COMMIT}": "1 commit of your own",
    "echo mine > beta/b.py; git stash -q": "the stash",
    "cp beta/b.py ../b; echo mine > beta/b.py; git add beta; cp ../b beta/b.py": "staged",
    "echo mine > beta/mine.py; git add beta; rm beta/mine.py": "staged",
    f"{_ON_A_BRANCH}; git gc -q --prune=now": "branch mine",
    "git branch mine HEAD~1": "branch mine",
    "git tag mine": "tag mine",
    "mkdir -p $GIT/hooks; echo '#!/bin/sh' > $GIT/hooks/pre-commit": "hooks/pre-commit in its git repository",
    "git config user.email me@example.com": "config in its git repository",
    "echo '*.bin binary' >> $GIT/info/attributes": "info/attributes in its git repository",
    "echo '*.bin' > $GIT/info/exclude": "info/exclude in its git repository",
    "git worktree add -q --detach ../../other": "worktrees/other/gitdir in its git repository",
}


@pytest.mark.parametrize("script", HISTORIES)
def test_history_stops_a_setup_and_discard_keeps_it(stack: Stack, paths: WorkspacePaths, script: str) -> None:
    work(paths, stack, script.replace("$GIT", str(paths.git / "code")))
    with unchanged(paths.root):
        assert_told(stack.lay(paths.root, stack.new), HISTORIES[script], code=3)
    root = "src-gamma" if "src/gamma" in script else "code"
    objects = ["cat-file", "--batch-all-objects", "--batch-check", "--unordered"]
    had = set(git_in(paths.git / root, stack.env, "--git-dir=.", *objects).splitlines())
    ok(stack.lay(paths.root, stack.new, "--discard"))
    mine = kept(paths) / "git" / root
    assert set(git_in(mine, stack.env, "--git-dir=.", *objects).splitlines()) == had
    git_in(mine, stack.env, "--git-dir=.", "fsck")
    assert found(paths, deep=True) == []
    assert git_in(paths.code, stack.env, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    "script",
    [
        "git status; git log -p; git checkout -q HEAD~2; git checkout -q main",
        "git bisect start HEAD HEAD~3; git bisect good; git checkout -q main",
        "echo mine > beta/mine.py; git add beta; git rm -qf beta/mine.py",
        "git gc -q; git repack -qad",
        "git config branch.main.vscode-merge-base a; git config branch.日本.gk-last-accessed b; git config gui.x c",
    ],
)
def test_what_leaves_nothing_to_lose_stops_nothing(stack: Stack, paths: WorkspacePaths, script: str) -> None:
    work(paths, stack, script)
    ok(stack.lay(paths.root, stack.new))
    assert found(paths, deep=True) == []
    assert not paths.kept.exists()


# -- discard -------------------------------------------------------------------------------------------


def test_each_discard_has_a_folder_of_its_own_and_status_names_it(
    stack: Stack, paths: WorkspacePaths
) -> None:
    for number in range(3):
        (paths.code / "mine.txt").write_text(str(number))
        assert stack.lay(paths.root, stack.old, "--discard").returncode == 0
    folders = sorted(paths.kept.iterdir())
    assert sorted((f / "code/mine.txt").read_text() for f in folders) == ["0", "1", "2"]
    shown = stack.run("status", "-w", paths.root).stdout
    assert all(str(folder) in shown for folder in folders)


def test_a_discard_that_fails_moves_nothing(stack: Stack, paths: WorkspacePaths, tmp_path: Path) -> None:
    (paths.code / "beta/b.py").write_text("mine\n")
    env = {"NPU_RL_STORE": str(tmp_path / "empty")}
    with unchanged(paths.root):
        done = stack.run("setup", "-m", stack.new, "-w", paths.root, "--discard", "--offline", env=env)
        assert done.returncode == 1


# -- diff ----------------------------------------------------------------------------------------------


def test_diff_shows_what_apply_would_redo(stack: Stack, paths: WorkspacePaths, tmp_path: Path) -> None:
    assert (stack.run("diff", "-w", paths.root).stdout) == ""
    work(
        paths,
        stack,
        "echo mine > beta/b.py; echo N > 'beta/new größe.py'; chmod 644 alpha/run.sh; rm beta/__init__.py",
    )
    (paths.code / "out.log").write_text("ignored")
    done = ok(stack.run("diff", "-w", paths.root))
    assert "not shown: code/out.log (log)" in done.stderr
    other = stack.make(tmp_path / "other")
    (tmp_path / "mine.patch").write_text(done.stdout)
    git_in(other.code, stack.env, "apply", str(tmp_path / "mine.patch"))
    assert found(other) == found(paths)
    assert [p.read_text() for p in sorted(other.code.glob("beta/*"))] == [
        p.read_text() for p in sorted(paths.code.glob("beta/*"))
    ]


def test_diff_leaves_the_users_index_alone_and_runs_none_of_their_filters(
    stack: Stack, paths: WorkspacePaths, tmp_path: Path
) -> None:
    work(
        paths,
        stack,
        f"echo mine > beta/b.py; git add beta; git config filter.evil.clean 'touch {tmp_path}/ran; cat'",
    )
    (paths.git / "code/info/attributes").write_text("* filter=evil\n")
    with unchanged(paths.git):
        assert "+mine" in stack.run("diff", "-w", paths.root).stdout
    assert not (tmp_path / "ran").exists()


def test_diff_tells_of_what_has_no_form_as_a_patch(stack: Stack, paths: WorkspacePaths) -> None:
    work(
        paths,
        stack,
        "mkdir beta/.git; touch beta/.git/HEAD; cd alpha; rm core.py same_a.py; mkfifo core.py; mkdir same_a.py",
    )
    done = ok(stack.run("diff", "-w", paths.root))
    assert "not shown: code/beta/.git/" in done.stderr
    assert "deleted file mode 100644\nindex" in done.stdout
    assert done.stdout.count("deleted file") == 2
