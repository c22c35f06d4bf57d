"""Local work is never lost: not by a setup that stops, not by one that is told to go on, not by a late edit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from npu_rl.common.disk import remove_tree
from npu_rl.workspace.folder import local_edits
from npu_rl.workspace.folder.workspace_paths import MOVED, WorkspacePaths
from tests.support import assert_told, ok
from tests.workspace.stack import Stack, found, git_in, leftovers, snapshot, unchanged

Work = Callable[[WorkspacePaths, Stack], object]


def kept(paths: WorkspacePaths) -> Path:
    """The one folder of things that were put aside."""
    (folder,) = paths.kept.iterdir()
    return folder


# -- files ---------------------------------------------------------------------------------------------


def modify(paths: WorkspacePaths, stack: Stack) -> None:
    (paths.code / "beta/b.py").write_text("B = 'mine'\n")


def written(*names: str) -> Work:
    """Files of a person's, by their paths below the workspace."""

    def work(paths: WorkspacePaths, stack: Stack) -> None:
        for place in (paths.root / name for name in names):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("mine own")

    return work


add = written("code/beta/mine.py")
nested_repository = written("code/beta/.git/HEAD")


def make_link(paths: WorkspacePaths, stack: Stack) -> None:
    (paths.code / "beta/b.py").unlink()
    (paths.code / "beta/b.py").symlink_to("../alpha/core.py")


def make_folder(paths: WorkspacePaths, stack: Stack) -> None:
    (paths.code / "beta/b.py").unlink()
    (paths.code / "beta/b.py").mkdir()
    (paths.code / "beta/b.py/mine.txt").write_text("mine")


def change_activate(paths: WorkspacePaths, stack: Stack) -> None:
    with (paths.root / "activate").open("a") as file:
        file.write("export MINE=1\n")


def own_repository(paths: WorkspacePaths, stack: Stack) -> None:
    (paths.code / ".git").unlink()
    git_in(paths.code, stack.env, "init", "-q")
    git_in(paths.code, stack.env, "add", "alpha/core.py")
    git_in(paths.code, stack.env, "commit", "-qm", "mine")


def git_attributes(paths: WorkspacePaths, stack: Stack) -> None:
    with (paths.git / "code/info/attributes").open("a") as file:
        file.write("*.bin binary\n")


REPOSITORY = ".npu-rl/git/code"


NEW = (
    "code/beta/__pycache__/thesis.pyc",
    "code/beta/mine.py",
    "code/outputs/step_1/log größe\nx.txt",
    "src/gamma/build.log",
    "src/my project/thesis.tex",
    "code/beta/.git/HEAD",
)
# What is done, and the paths of the work that is found.
FILES: dict[str, tuple[Work, list[str]]] = {
    **{f"new {name}": (written(name), [name]) for name in NEW},
    "modified": (modify, ["code/beta/b.py"]),
    "mode": (lambda paths, stack: (paths.code / "beta/b.py").chmod(0o755), ["code/beta/b.py"]),
    "link": (make_link, ["code/beta/b.py"]),
    "folder": (make_folder, ["code/beta/b.py/mine.txt"]),
    "activate": (change_activate, ["activate"]),
    "own repository": (own_repository, ["code/.git/HEAD"]),
}


@pytest.fixture(params=FILES)
def mine(request: pytest.FixtureRequest, paths: WorkspacePaths, stack: Stack) -> list[str]:
    """The paths of work that was done."""
    work, found = FILES[request.param]
    work(paths, stack)
    return found


def test_work_stops_a_setup_and_nothing_changes(stack: Stack, paths: WorkspacePaths, mine: list[str]) -> None:
    with unchanged(paths.root):
        done = stack.lay(paths.root, stack.new)
        assert_told(done, "that setup would replace", "--discard", code=3)
        for path in mine:
            assert path.split("/")[1 if "/" in path else 0] in done.stderr


def test_discard_moves_work_aside(stack: Stack, paths: WorkspacePaths, mine: list[str]) -> None:
    before = {path: (paths.root / path).lstat() for path in mine}
    done = ok(stack.lay(paths.root, stack.new, "--discard"))
    assert str(kept(paths)) in done.stdout
    for path, status in before.items():
        now = (kept(paths) / path).lstat()
        assert (now.st_ino, now.st_mode, now.st_size) == (status.st_ino, status.st_mode, status.st_size)
    assert found(paths, deep=True) == []
    assert leftovers(paths.root) == []


def test_the_list_is_whole_or_says_how_much_more(stack: Stack, paths: WorkspacePaths) -> None:
    for number in range(25):
        (paths.code / f"mine_{number:02}.txt").write_text("")
    done = stack.lay(paths.root, stack.new)
    assert "25 local changes that setup would replace" in done.stderr
    assert "code/mine_00.txt" in done.stderr
    assert "and 5 more" in done.stderr


@pytest.mark.parametrize("gone", ["code/beta/b.py", "code/beta", "src/gamma/build.txt", "code"])
def test_what_was_deleted_is_no_work_and_comes_back(stack: Stack, paths: WorkspacePaths, gone: str) -> None:
    remove_tree(paths.root / gone)
    assert "is ready" in ok(stack.lay(paths.root)).stdout
    assert found(paths, deep=True) == []
    assert not paths.kept.exists()


def test_edits_that_the_new_lock_contains(stack: Stack, paths: WorkspacePaths) -> None:
    (paths.code / "alpha/same_a.py").write_text("A = 2\n")  # as in alpha 2
    (paths.code / "delta").mkdir()
    (paths.code / "delta/__init__.py").write_text("D = 1\n")  # as in delta
    ok(stack.lay(paths.root, stack.new))
    assert found(paths, deep=True) == []
    assert not paths.kept.exists()


def test_one_of_them_differs_all_the_same(stack: Stack, paths: WorkspacePaths) -> None:
    (paths.code / "alpha/same_a.py").write_text("A = 2\n")
    (paths.code / "beta/b.py").write_text("B = 3\n")
    done = stack.lay(paths.root, stack.new)
    assert_told(done, "1 local change that setup would replace", code=3)
    assert "alpha/same_a.py" not in done.stderr


def test_links_out_of_the_workspace_are_moved_not_followed(
    stack: Stack, paths: WorkspacePaths, tmp_path: Path
) -> None:
    """What a link leads to belongs to somebody else: it is neither moved nor removed."""
    mine = tmp_path / "my own"
    (mine / "gamma").mkdir(parents=True)
    (mine / "gamma/thesis.tex").write_text("mine")
    (mine / "code.txt").write_text("mine")
    shutil.rmtree(paths.code)
    paths.code.symlink_to(mine)
    shutil.rmtree(paths.root / "src")
    (paths.root / "src").symlink_to(mine)
    with unchanged(mine):
        assert stack.lay(paths.root, stack.new).returncode == 3
        ok(stack.lay(paths.root, stack.new, "--discard"))
    assert (kept(paths) / "code").readlink() == (kept(paths) / "src").readlink() == mine
    assert found(paths, deep=True) == []


@pytest.mark.parametrize("damage", ["", "{}", "\0", '{"digest":"' + "0" * 64 + '"}'])
def test_without_a_receipt_everything_may_be_work(stack: Stack, paths: WorkspacePaths, damage: str) -> None:
    (paths.code / "beta/b.py").write_text("B = 'mine'\n")
    paths.receipt.write_text(damage)
    before = snapshot(paths.root)
    for manifest in (stack.old, stack.new):
        assert_told(stack.lay(paths.root, manifest), "code/", code=3)
        assert snapshot(paths.root) == before
    ok(stack.lay(paths.root, stack.old, "--discard"))
    assert (kept(paths) / "code/beta/b.py").read_text() == "B = 'mine'\n"
    assert (kept(paths) / "git/code/HEAD").is_file()
    assert found(paths, deep=True) == []


def test_a_changed_record_of_times_hides_no_work(stack: Stack, paths: WorkspacePaths) -> None:
    for text in ("", '{"receipt": "x", "roots": {"code": {}}}'):
        paths.stat.write_text(text)
        (paths.code / "beta/b.py").write_text("B = 'mine'\n")
        assert stack.lay(paths.root, stack.new).returncode == 3


# -- git -----------------------------------------------------------------------------------------------


def commit(paths: WorkspacePaths, stack: Stack) -> None:
    modify(paths, stack)
    git_in(paths.code, stack.env, "commit", "-qam", "mine")


def commit_in_src(paths: WorkspacePaths, stack: Stack) -> None:
    (paths.root / "src/gamma/build.txt").write_text("mine\n")
    git_in(paths.root / "src/gamma", stack.env, "commit", "-qam", "mine")


def commit_on_a_branch_and_go_back(paths: WorkspacePaths, stack: Stack) -> None:
    git_in(paths.code, stack.env, "checkout", "-qb", "mine")
    commit(paths, stack)
    git_in(paths.code, stack.env, "checkout", "-q", "main")


def commit_and_undo(paths: WorkspacePaths, stack: Stack) -> None:
    commit(paths, stack)
    git_in(paths.code, stack.env, "reset", "-q", "--hard", "HEAD^")


def commit_without_a_branch(paths: WorkspacePaths, stack: Stack) -> None:
    git_in(paths.code, stack.env, "checkout", "-q", "--detach")
    commit(paths, stack)
    git_in(paths.code, stack.env, "checkout", "-q", "main")


def commit_in_a_work_tree(paths: WorkspacePaths, stack: Stack) -> None:
    git_in(paths.code, stack.env, "worktree", "add", "-q", "--detach", str(paths.root / "other"))
    (paths.root / "other/beta/b.py").write_text("mine\n")
    git_in(paths.root / "other", stack.env, "commit", "-qam", "mine")


def stash(paths: WorkspacePaths, stack: Stack) -> None:
    modify(paths, stack)
    git_in(paths.code, stack.env, "stash", "-q")


def stage_and_restore_the_file(paths: WorkspacePaths, stack: Stack) -> None:
    before = (paths.code / "beta/b.py").read_text()
    modify(paths, stack)
    git_in(paths.code, stack.env, "add", "beta/b.py")
    (paths.code / "beta/b.py").write_text(before)


def stage_and_delete_the_file(paths: WorkspacePaths, stack: Stack) -> None:
    add(paths, stack)
    git_in(paths.code, stack.env, "add", "beta/mine.py")
    (paths.code / "beta/mine.py").unlink()


def packed(paths: WorkspacePaths, stack: Stack) -> None:
    commit_on_a_branch_and_go_back(paths, stack)
    git_in(paths.code, stack.env, "gc", "-q", "--prune=now")


def branch_only(paths: WorkspacePaths, stack: Stack) -> None:
    git_in(paths.code, stack.env, "branch", "mine", "HEAD~1")


def tag_only(paths: WorkspacePaths, stack: Stack) -> None:
    git_in(paths.code, stack.env, "tag", "mine")


def hook(paths: WorkspacePaths, stack: Stack) -> None:
    (paths.git / "code/hooks").mkdir(exist_ok=True)
    (paths.git / "code/hooks/pre-commit").write_text("#!/bin/sh\n")


def settings(paths: WorkspacePaths, stack: Stack) -> None:
    git_in(paths.code, stack.env, "config", "user.email", "me@example.com")


def exclude(paths: WorkspacePaths, stack: Stack) -> None:
    (paths.git / "code/info/exclude").write_text("# mine\n*.bin\n")


def work_tree(paths: WorkspacePaths, stack: Stack) -> None:
    git_in(paths.code, stack.env, "worktree", "add", "-q", "--detach", "../../other")


HISTORIES: dict[Work, str] = {
    commit: "branch main",
    commit_in_src: "src/gamma: branch main",
    commit_on_a_branch_and_go_back: "branch mine",
    commit_and_undo: "1 commit of your own",
    commit_without_a_branch: "1 commit of your own",
    commit_in_a_work_tree: "1 commit of your own",
    stash: "the stash",
    stage_and_restore_the_file: "staged",
    stage_and_delete_the_file: "staged",
    packed: "branch mine",
    branch_only: "branch mine",
    tag_only: "tag mine",
    hook: "hooks/pre-commit in its git repository",
    settings: "config in its git repository",
    git_attributes: "info/attributes in its git repository",
    exclude: "info/exclude in its git repository",
    work_tree: "worktrees/other/gitdir in its git repository",
}


@pytest.mark.parametrize("work", HISTORIES, ids=lambda work: work.__name__)
def test_history_stops_a_setup_and_discard_keeps_it(stack: Stack, paths: WorkspacePaths, work: Work) -> None:
    work(paths, stack)
    with unchanged(paths.root):
        assert_told(stack.lay(paths.root, stack.new), HISTORIES[work], code=3)
    root = "src-gamma" if work is commit_in_src else "code"
    objects = ["cat-file", "--batch-all-objects", "--batch-check", "--unordered"]
    had = set(git_in(paths.git / root, stack.env, "--git-dir=.", *objects).splitlines())
    ok(stack.lay(paths.root, stack.new, "--discard"))
    mine = kept(paths) / "git" / root
    assert set(git_in(mine, stack.env, "--git-dir=.", *objects).splitlines()) == had
    git_in(mine, stack.env, "--git-dir=.", "fsck")
    assert found(paths, deep=True) == []
    assert git_in(paths.code, stack.env, "status", "--porcelain") == ""


def check_laid_files(paths: WorkspacePaths, stack: Stack) -> None:
    git_in(paths.code, stack.env, "status")
    git_in(paths.code, stack.env, "log", "-p")
    git_in(paths.code, stack.env, "checkout", "-q", "HEAD~2")
    git_in(paths.code, stack.env, "checkout", "-q", "main")


def bisect(paths: WorkspacePaths, stack: Stack) -> None:
    git_in(paths.code, stack.env, "bisect", "start", "HEAD", "HEAD~3")
    git_in(paths.code, stack.env, "bisect", "good")
    git_in(paths.code, stack.env, "checkout", "-q", "main")


def stage_and_unstage(paths: WorkspacePaths, stack: Stack) -> None:
    add(paths, stack)
    git_in(paths.code, stack.env, "add", "beta/mine.py")
    git_in(paths.code, stack.env, "rm", "-qf", "beta/mine.py")


def garbage_collection(paths: WorkspacePaths, stack: Stack) -> None:
    git_in(paths.code, stack.env, "gc", "-q")
    git_in(paths.code, stack.env, "repack", "-qad")


@pytest.mark.parametrize(
    "work", [check_laid_files, bisect, stage_and_unstage, garbage_collection], ids=lambda work: work.__name__
)
def test_what_leaves_nothing_to_lose_stops_nothing(stack: Stack, paths: WorkspacePaths, work: Work) -> None:
    work(paths, stack)
    ok(stack.lay(paths.root, stack.new))
    assert found(paths, deep=True) == []
    assert not paths.kept.exists()


def test_a_repository_that_git_cannot_read_is_kept_whole(stack: Stack, paths: WorkspacePaths) -> None:
    commit(paths, stack)
    (paths.git / "code/objects/info/alternates").write_text("/nowhere\n")
    assert "can't be read" in stack.lay(paths.root, stack.new).stderr
    assert stack.lay(paths.root, stack.new, "--discard").returncode == 0
    assert (kept(paths) / "git/code/objects/info/alternates").is_file()


# -- discard -------------------------------------------------------------------------------------------


def test_discard_without_a_new_lock_goes_back_to_the_locked_state(
    stack: Stack, paths: WorkspacePaths
) -> None:
    modify(paths, stack)
    commit_on_a_branch_and_go_back(paths, stack)
    add(paths, stack)
    assert stack.lay(paths.root, stack.old, "--discard").returncode == 0
    assert found(paths, deep=True) == []
    assert (kept(paths) / "code/beta/mine.py").read_text() == "mine own"
    assert "B = 'mine'" in git_in(
        kept(paths) / "git/code", stack.env, "--git-dir=.", "show", "mine:beta/b.py"
    )


def test_each_discard_has_a_folder_of_its_own_and_status_names_it(
    stack: Stack, paths: WorkspacePaths
) -> None:
    for number in range(3):
        (paths.code / "mine.txt").write_text(str(number))
        (paths.code / "beta/b.py").write_text(f"B = {number + 5}\n")
        assert stack.lay(paths.root, stack.old, "--discard").returncode == 0
    folders = sorted(paths.kept.iterdir())
    assert sorted((f / "code/mine.txt").read_text() for f in folders) == ["0", "1", "2"]
    shown = stack.run("status", "-w", paths.root).stdout
    assert all(str(folder) in shown for folder in folders)


def test_a_discard_that_fails_moves_nothing(stack: Stack, paths: WorkspacePaths, tmp_path: Path) -> None:
    modify(paths, stack)
    env = {"NPU_RL_STORE": str(tmp_path / "empty")}
    with unchanged(paths.root):
        done = stack.run("setup", "-m", stack.new, "-w", paths.root, "--discard", "--offline", env=env)
        assert done.returncode == 1


# -- late ----------------------------------------------------------------------------------------------


def test_work_done_while_the_setup_ran_is_kept(paths: WorkspacePaths, mine: list[str]) -> None:
    """The old parts, as a swap shows them before it removes them."""
    old = paths.hidden / "old-0123456789ab"
    (old / ".npu-rl").mkdir(parents=True)
    for name in MOVED:
        if (paths.root / name).exists():
            (paths.root / name).rename(old / name)
    work_found = local_edits.find_edits(old, {})
    assert work_found
    place = paths.kept / "now"
    local_edits.move_edits(old, work_found, place)
    for path in mine:
        assert os.path.lexists(place / path)
    assert not local_edits.find_edits(old, {}).files


# -- diff ----------------------------------------------------------------------------------------------


def test_diff_shows_what_apply_would_redo(stack: Stack, paths: WorkspacePaths, tmp_path: Path) -> None:
    (paths.code / "beta/b.py").write_text("B = 'mine'\n")
    (paths.code / "beta/new größe.py").write_text("N = 1\n")
    (paths.code / "alpha/run.sh").chmod(0o644)
    (paths.code / "beta/__init__.py").unlink()
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


def test_diff_of_nothing_is_empty(stack: Stack, paths: WorkspacePaths) -> None:
    done = stack.run("diff", "-w", paths.root)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_diff_leaves_the_users_index_alone_and_runs_none_of_their_filters(
    stack: Stack, paths: WorkspacePaths, tmp_path: Path
) -> None:
    modify(paths, stack)
    git_in(paths.code, stack.env, "add", "beta/b.py")
    git_in(paths.code, stack.env, "config", "filter.evil.clean", f"touch {tmp_path}/ran; cat")
    (paths.git / "code/info/attributes").write_text("* filter=evil\n")
    with unchanged(paths.git):
        assert "+B = 'mine'" in stack.run("diff", "-w", paths.root).stdout
    assert not (tmp_path / "ran").exists()


def test_diff_tells_of_what_has_no_form_as_a_patch(stack: Stack, paths: WorkspacePaths) -> None:
    nested_repository(paths, stack)
    (paths.code / "alpha/core.py").unlink()
    os.mkfifo(paths.code / "alpha/core.py")
    (paths.code / "alpha/same_a.py").unlink()
    (paths.code / "alpha/same_a.py").mkdir()
    done = ok(stack.run("diff", "-w", paths.root))
    assert "not shown: code/beta/.git/" in done.stderr
    assert "deleted file mode 100644\nindex" in done.stdout
    assert done.stdout.count("deleted file") == 2


def test_diff_of_a_replaced_root(stack: Stack, paths: WorkspacePaths) -> None:
    paths.code.rename(paths.root / "moved")
    paths.code.symlink_to("moved")
    done = stack.run("diff", "-w", paths.root)
    assert (done.returncode, done.stdout) == (0, "")
    assert "not shown: code (type)" in done.stderr


def test_what_an_editor_notes_in_gits_settings_stops_nothing(stack: Stack, paths: WorkspacePaths) -> None:
    for name in ("branch.main.vscode-merge-base", "branch.fix/日本.gk-last-accessed", "gui.geometry"):
        git_in(paths.code, stack.env, "config", name, "a value")
    ok(stack.lay(paths.root, stack.new))
    assert not paths.kept.exists()
