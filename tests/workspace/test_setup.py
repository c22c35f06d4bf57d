"""Setting up: first, again, to another lock, in odd places, in places that must be refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from npu_rl.workspace.folder.receipt import read_receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.support import assert_told, command_server, git, modules_after, ok
from tests.workspace.stack import Stack, activated, found, git_in, leftovers, snapshot, unchanged


def test_first_setup_lays_the_locked_tree(stack: Stack, tmp_path: Path) -> None:
    done = ok(stack.setup(tmp_path / "w", None, "--json"))
    document = json.loads(done.stdout)
    lock = stack.lock(stack.old)
    assert (document["lock"]["commit"], document["lock"]["tree"]) == (lock.commit, lock.tree)
    assert document["workspace"] == str(tmp_path / "w") and document["outcome"]["changed"]
    paths = WorkspacePaths(tmp_path / "w")
    assert sorted(os.listdir(paths.root)) == [".npu-rl", "activate", "code", "src"]
    assert sorted(os.listdir(paths.root / "src")) == ["gamma"]
    assert (paths.root / "src/gamma/build.txt").read_text() == "one\nzwei\nthree\n"
    assert (paths.code / "alpha/run.sh").stat().st_mode & 0o111
    assert (paths.code / "alpha/link.py").readlink() == Path("core.py")
    assert not (paths.code / "setup.py").exists()
    assert found(paths, deep=True) == []
    assert leftovers(paths.root) == leftovers(Path(stack.env["NPU_RL_STORE"])) == []
    texts = read_receipt(paths).texts
    assert {hashlib.sha256(text.encode()).hexdigest() for text in texts.values()} == set(texts)
    assert set(texts) == {patch.sha256 for _, patch in lock.patches()}


def test_again_says_so_touches_nothing_and_needs_neither_git_nor_anything_heavy(
    stack: Stack, paths: WorkspacePaths, tmp_path: Path
) -> None:
    env = {**stack.env, "PATH": str(tmp_path / "no-git-here")}
    with unchanged(paths.root):
        assert "nothing to do" in ok(stack.setup(paths.root)).stdout
        document = json.loads(stack.setup(paths.root, None, "--json").stdout)
        loaded = modules_after(["setup", "-m", stack.old, "-w", paths.root], env, tmp_path)
    assert (document["outcome"]["changed"], document["outcome"]["received"]) == (False, 0)
    assert not loaded & {"pydantic", "yaml", "git", "unearth", "rich"}


def test_an_update_keeps_nothing_stale_and_there_and_back_gives_the_same(
    stack: Stack, paths: WorkspacePaths, incoming: WorkspacePaths
) -> None:
    def contents(root: Path) -> dict[str, bytes]:
        own = snapshot(root).items()
        return {path: content for path, (_, _, content) in own if path.startswith(("code", "src", "act"))}

    before = contents(paths.root)
    ok(stack.setup(paths.root, stack.new))
    names = [sorted(str(p.relative_to(w)) for p in w.rglob("*")) for w in (paths.root, incoming.root)]
    assert names[0] == names[1]
    assert contents(paths.root) == contents(incoming.root)
    assert found(paths, deep=True) == []
    assert leftovers(paths.root) == []
    ok(stack.setup(paths.root, stack.old))
    assert contents(paths.root) == before


# -- where ---------------------------------------------------------------------------------------------


def test_setup_into_a_folder_with_an_odd_name_among_other_files(stack: Stack, tmp_path: Path) -> None:
    name = '-two größe quo"te per%cent$HOME'
    (tmp_path / name / "runs").mkdir(parents=True)
    (tmp_path / name / "notes.txt").write_text("mine")
    paths = stack.make(tmp_path / name)
    assert found(paths, deep=True) == []
    assert git_in(paths.code, stack.env, "status", "--porcelain") == ""
    assert git_in(paths.code, stack.env, "rev-parse", "HEAD") == stack.lock(stack.old).commit
    ok(stack.run("setup", "-m", stack.new, "-w", f"./{name}", "--offline", cwd=tmp_path))
    assert found(paths, deep=True) == []
    assert sorted(os.listdir(tmp_path)) == [name]
    assert (paths.root / "notes.txt").read_text() == "mine" and (paths.root / "runs").is_dir()


def test_a_symlink_to_a_folder(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    paths = stack.make(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real/code/alpha/core.py").is_file()
    assert found(paths) == found(WorkspacePaths(tmp_path / "real")) == []
    assert stack.setup(tmp_path / "link", stack.new).returncode == 0
    assert found(WorkspacePaths(tmp_path / "real"), deep=True) == []


# -- refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["code", "src", "activate"])
def test_a_foreign_folder_is_refused(stack: Stack, tmp_path: Path, name: str) -> None:
    (tmp_path / "w" / name).mkdir(parents=True)
    (tmp_path / "w" / name / "thesis.txt").write_text("years of work")
    with unchanged(tmp_path):
        for options in ((), ("--discard",)):
            done = stack.lay(tmp_path / "w", None, *options)
            assert_told(done, f"contains {name}, which npu-rl did not create", code=3)


@pytest.mark.parametrize("kind", ["file", "broken link", "hidden link", "below a file"])
def test_setup_into_an_impossible_place_changes_nothing(stack: Stack, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "w"
    if kind == "broken link":
        place.symlink_to("nowhere")
    elif kind == "hidden link":
        place.mkdir()
        (tmp_path / "elsewhere").mkdir()
        (place / ".npu-rl").symlink_to(tmp_path / "elsewhere")
    else:
        place.write_text("a file")
    with unchanged(tmp_path):
        done = stack.lay(place / "inside" if kind == "below a file" else place)
        assert done.returncode != 0
        assert done.stderr.startswith("npu-rl: ")


@pytest.mark.parametrize("part", ["lock.json", "receipt.json"])
def test_half_a_workspace_is_not_taken_for_an_empty_folder(
    stack: Stack, paths: WorkspacePaths, part: str
) -> None:
    (paths.hidden / part).unlink()
    (paths.code / "mine.txt").write_text("mine")
    with unchanged(paths.root):
        assert stack.setup(paths.root, stack.new, "--discard").returncode == 3


def test_a_setup_that_fails_changes_nothing(stack: Stack, paths: WorkspacePaths, tmp_path: Path) -> None:
    empty = {
        "NPU_RL_STORE": str(tmp_path / "empty"),
        "NPU_RL_REWRITE": f"file://{stack.home}/=file:///nowhere/",
    }
    with unchanged(paths.root):
        assert stack.setup(paths.root, stack.new, env=empty).returncode == 1
    assert stack.setup(tmp_path / "first", env=empty).returncode == 1
    assert not (tmp_path / "first").exists()
    (tmp_path / "made by me").mkdir()
    assert stack.setup(tmp_path / "made by me", env=empty).returncode == 1
    assert os.listdir(tmp_path / "made by me") == []
    assert stack.setup(tmp_path / "first").returncode == 0


# -- the same everywhere -------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/St_Johns"])
def test_time_zone_and_locale_change_nothing(stack: Stack, tmp_path: Path, zone: str) -> None:
    env = {"TZ": zone, "LC_ALL": "C", "LANG": "de_DE.UTF-8", "NPU_RL_STORE": str(tmp_path / "store")}
    done = ok(stack.setup(tmp_path / "w", None, "--json", env=env))
    lock = stack.lock(stack.old)
    document = json.loads(done.stdout)
    assert (document["lock"]["tree"], document["lock"]["commit"]) == (lock.tree, lock.commit)
    assert stack.run("verify", "-w", tmp_path / "w", "--deep", env=env).returncode == 0
    assert found(WorkspacePaths(tmp_path / "w"), deep=True) == []


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_umask_does_not_change_the_tree(stack: Stack, tmp_path: Path, mask: int) -> None:
    env = {**stack.env, "NPU_RL_STORE": str(tmp_path / "store")}
    command = ["setup", "-m", str(stack.old), "-w", str(tmp_path / "w")]
    assert command_server().run(command, env, "/", 60, ["os:umask", mask]).returncode == 0
    assert found(WorkspacePaths(tmp_path / "w"), deep=True) == []
    assert git_in(tmp_path / "w/code", stack.env, "rev-parse", "HEAD^{tree}") == stack.lock(stack.old).tree
    assert git_in(tmp_path / "w/code", stack.env, "status", "--porcelain") == ""


# -- afterwards ----------------------------------------------------------------------------------------


def test_git_works_in_code_and_src(stack: Stack, paths: WorkspacePaths) -> None:
    assert git_in(paths.code, stack.env, "status", "--porcelain") == ""
    assert git_in(paths.code, stack.env, "rev-parse", "--abbrev-ref", "HEAD") == "main"
    subjects = git_in(paths.code, stack.env, "log", "--format=%s").splitlines()
    assert "Apply 0001-ten to alpha" in subjects
    assert any(s.startswith("Pin beta at ") for s in subjects)
    blame = git_in(paths.code, stack.env, "blame", "-s", "alpha/core.py").splitlines()
    apply_ten = git_in(paths.code, stack.env, "log", "--format=%h", "--grep=0001-ten").split()[0]
    assert blame[9].startswith(apply_ten[:7])
    assert "line_10 = 11" in blame[9]
    with (paths.code / "beta/b.py").open("a") as file:
        file.write("C = 1\n")
    assert "+C = 1" in git_in(paths.code, stack.env, "diff")
    assert (
        git_in(paths.root / "src/gamma", stack.env, "log", "--format=%s").splitlines()[0]
        == "Apply 0001-zwei to gamma"
    )


def test_the_workspace_outlives_the_store_and_a_move(stack: Stack, tmp_path: Path) -> None:
    env = {"NPU_RL_STORE": str(tmp_path / "store")}
    assert stack.setup(tmp_path / "w", env=env).returncode == 0
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "w").rename(tmp_path / "moved")
    paths = WorkspacePaths(tmp_path / "moved")
    assert found(paths) == found(paths, deep=True) == []
    assert git_in(paths.code, stack.env, "status", "--porcelain") == ""
    assert len(git_in(paths.code, stack.env, "log", "-p", "--format=%s").splitlines()) > 10
    git("fsck", "--strict", git_dir=paths.git / "code")
    assert "nothing to do" in stack.setup(paths.root, env=env).stdout
    shown = activated(paths, 'printf "%s" "$PYTHONPATH"', HOME=stack.env["HOME"])
    assert shown == f"{paths.root}/code"


def test_activate_sets_the_paths_and_the_environment(stack: Stack, tmp_path: Path) -> None:
    paths = stack.make(tmp_path / "a place with spaces and größe")
    shown = activated(
        paths,
        'printf "%s\\n" "$NPU_RL_WORKSPACE" "$PYTHONPATH" "$STACK_NAME" "$NPU_RL_RUNS"',
        HOME=stack.env["HOME"],
    )
    root = str(paths.root)
    assert shown.splitlines() == [root, f"{root}/code", "old 'quoted'", f"{root}/runs"]
    twice = activated(
        paths,
        f'source "{root}/activate"; printf "%s" "$PYTHONPATH"',
        HOME=stack.env["HOME"],
        PYTHONPATH="/mine:/other",
    )
    assert twice == f"{root}/code:/mine:/other"


def test_python_in_an_activated_workspace_leaves_no_trace_in_code(
    stack: Stack, paths: WorkspacePaths
) -> None:
    code = "import alpha.core, beta.b, importlib.metadata as m; print(alpha.core.line_10, beta.b.B, m.version('alpha'))"
    with unchanged(paths.code):
        assert activated(paths, f'"{sys.executable}" -c "{code}"', HOME=stack.env["HOME"]) == "11 1 1.0\n"
    assert list(Path(stack.env["HOME"], ".cache/npu-rl/byte-code").rglob("core.*.pyc"))
    assert not list(paths.root.rglob("*.pyc"))
    assert found(paths) == []
