"""Proving a workspace: what is found, whose it is, which hunk it hits, and what can't fool it."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests
from npu_rl.common.errors import LockError, WorkspaceError
from npu_rl.workspace.folder.receipt import read_receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.require_locked import require_locked
from tests.support import assert_told, modules_after, ok
from tests.workspace.stack import (
    Stack,
    found,
    git_in,
    look,
    receipt_with,
    verify_json,
)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, path
    path.write_text(text.replace(old, new))


def states(paths: WorkspacePaths, *, deep: bool = False) -> dict[tuple[str, int], tuple[str, int]]:
    """(patch, number of the hunk) to (state, line), for the hunks of `alpha`."""
    return {
        (patch.name, number): (hunk["state"], hunk["line"])
        for patch in look(paths, deep=deep).patches
        for number, hunk in enumerate(patch.hunks, 1)
        if patch.component == "alpha"
    }


WHOLE = {
    ("0001-ten", 1): ("in place", 10),
    ("0001-ten", 2): ("in place", 41),
    ("0002-half", 1): ("in place", 21),
    ("0002-half", 2): ("in place", 1),
}


# -- the document --------------------------------------------------------------------------------------


def test_drift_as_json_and_as_text(stack: Stack, paths: WorkspacePaths) -> None:
    edit(paths.code / "alpha/core.py", "line_10 = 11\n", "line_10 = 10\n")
    edit(paths.code / "beta/b.py", "B = 1", "B = 2")
    (paths.code / "train.log").write_text("")
    code, document = verify_json(stack, paths.root)
    assert (code, document["ok"], document["ignored"]) == (3, False, {"code/train.log": "log"})
    assert [tuple(row.values()) for row in document["drift"]] == [
        ("code/alpha/core.py", "modified", "alpha", "0001-ten", 1),
        ("code/beta/b.py", "modified", "beta", None, None),
    ]
    assert document["patches"][0]["hunks"][0] == {"file": "alpha/core.py", "line": 10, "state": "missing"}
    done = stack.run("verify", "-w", paths.root)
    assert done.returncode == 3
    assert "modified   code/alpha/core.py  (alpha, 0001-ten hunk 1)" in done.stdout
    assert "missing  alpha/core.py:10" in done.stdout
    assert "  ignored    code/train.log  (log, not from the lock)\n" in done.stdout
    assert "2 of " in done.stdout


# -- every kind, on a workspace ------------------------------------------------------------------------


def test_each_kind_with_its_component(paths: WorkspacePaths) -> None:
    code = paths.code
    edit(code / "beta/b.py", "B = 1", "B = 2")
    (code / "beta/__init__.py").unlink()
    (code / "alpha/run.sh").chmod(0o644)
    (code / "alpha/same_a.py").unlink()
    (code / "alpha/same_a.py").symlink_to("added.py")
    (code / "alpha/deep/er/leaf.py").unlink()
    (code / "alpha/deep/er/leaf.py").mkdir()
    (code / "random.py").write_text("")
    (code / "alpha/extra").mkdir()
    (code / "alpha/extra/__init__.py").write_text("")
    (code / "alpha-1.0.dist-info/METADATA").write_text("Name: other\n")
    (code / "alpha/out.log").write_text("a log\n")
    (code / "npu_rl_runtime/switches.py").write_text("")
    edit(paths.root / "src/gamma/csrc/k.cpp", "int k;", "int j;")
    report = look(paths)
    assert [(d.path, d.kind, d.component) for d in report.drift] == [
        ("code/alpha-1.0.dist-info/METADATA", "modified", "alpha"),
        ("code/alpha/deep/er/leaf.py", "type", "alpha"),
        ("code/alpha/extra/__init__.py", "untracked", "alpha"),
        ("code/alpha/run.sh", "mode", "alpha"),
        ("code/alpha/same_a.py", "type", "alpha"),
        ("code/beta/__init__.py", "missing", "beta"),
        ("code/beta/b.py", "modified", "beta"),
        ("code/npu_rl_runtime/switches.py", "modified", "npu_rl_runtime"),
        ("code/random.py", "untracked", None),
        ("src/gamma/csrc/k.cpp", "modified", "gamma"),
    ]
    assert report.ignored == {"code/alpha/out.log": "log"}


def test_file_names_that_are_not_text_are_reported(stack: Stack, paths: WorkspacePaths) -> None:
    os.close(os.open(os.fsencode(paths.code) + b"/alpha/\xff.py", os.O_CREAT | os.O_WRONLY))
    (paths.code / "größe.py").write_text("")
    for encoding in ("utf-8:strict", "ascii:strict"):
        env = {"PYTHONIOENCODING": encoding}
        done = stack.run("verify", "-w", paths.root, env=env)
        assert done.returncode == 3, done.stderr
        assert done.stdout.count("  untracked") == 2
        done = stack.run("verify", "-w", paths.root, "--json", env=env)
        assert [d["path"] for d in json.loads(done.stdout)["drift"]] == [
            "code/alpha/\udcff.py",
            "code/größe.py",
        ]
        done = stack.run("setup", "-m", stack.new, "-w", paths.root, env=env)
        assert (done.returncode, "Traceback" in done.stderr) == (3, False)


# -- quick is not blind --------------------------------------------------------------------------------


def test_edits_right_after_setup_are_found(stack: Stack, tmp_path: Path) -> None:
    for count in range(2):
        paths = stack.make(tmp_path / f"w{count}")
        path = paths.code / "alpha/same_a.py"
        before = path.stat()
        path.write_text("A = 7\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        for _ in range(2):  # and it stays found
            assert found(paths) == [("code/alpha/same_a.py", "modified")]


def test_a_second_look_reads_nothing(paths: WorkspacePaths) -> None:
    """As soon as the files are old enough for their times to tell of a change."""
    deadline = time.monotonic() + 30
    while look(paths).hashed:
        assert time.monotonic() < deadline
    report = look(paths)
    assert (report.ok, report.hashed) == (True, 0)
    assert look(paths, deep=True).hashed == report.files


def test_nothing_of_the_users_git_hides_a_change(paths: WorkspacePaths, stack: Stack) -> None:
    (paths.git / "code/info/exclude").write_text("*\n")
    (paths.git / "code/info/attributes").write_text("* text eol=crlf\n")
    for bit, name in (("--skip-worktree", "alpha/core.py"), ("--assume-unchanged", "beta/b.py")):
        git_in(paths.code, stack.env, "update-index", bit, name)
        with (paths.code / name).open("a") as file:
            file.write("# changed\n")
    (paths.code / "random.py").write_text("")
    assert git_in(paths.code, stack.env, "status", "--short") == ""
    changed = [("code/alpha/core.py", "modified"), ("code/beta/b.py", "modified")]
    assert found(paths) == [*changed, ("code/random.py", "untracked")]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "3", '{"roots": 3}', '{"receipt": 1, "roots": {"code": 1}}',
     '{"receipt": RECEIPT, "roots": [1]}', '{"receipt": RECEIPT, "roots": {"code": [1]}}',
     '{"receipt": RECEIPT, "roots": null}', "\0\0", "\udcff"],
)  # fmt: skip
def test_a_damaged_record_is_made_anew(paths: WorkspacePaths, text: str) -> None:
    digest = json.dumps(read_receipt(paths).digest)
    paths.stat.write_bytes(text.replace("RECEIPT", digest).encode("utf-8", "surrogateescape"))
    report = look(paths)
    assert report.ok
    assert report.hashed == report.files


# -- receipt and lock ----------------------------------------------------------------------------------


def test_a_damaged_receipt_is_refused(stack: Stack, paths: WorkspacePaths) -> None:
    text = paths.receipt.read_text()
    for damaged in (
        text[: len(text) // 2], "", "\0\1\2", "[1]", '{"receipt_format":1}', "[" * 100_000,
        text.replace("beta/b.py", "beta/c.py"), text.replace('"receipt_format":1', '"receipt_format":2'),
    ):  # fmt: skip
        paths.receipt.write_text(damaged)
        assert_told(stack.lay(paths.root, stack.new), "receipt", code=3)
        with pytest.raises(WorkspaceError, match="npu-rl setup") as caught:
            look(paths)
        assert caught.value.where == str(paths.receipt)


def test_a_forged_patch_text_is_found(paths: WorkspacePaths) -> None:
    edit(paths.receipt, "Ten is eleven", "Ten is twelve")
    receipt_with(paths, lambda body: None)  # its digest is made anew
    with pytest.raises(WorkspaceError, match="lacks the text of a locked patch"):
        look(paths)


def test_a_lock_edited_by_hand(stack: Stack, paths: WorkspacePaths) -> None:
    paths.lock.write_text(paths.lock.read_text().replace("a stack of small", "a stack of large"))
    with pytest.raises(LockError, match="edited by hand"):
        look(paths)
    assert stack.run("verify", "-w", paths.root).returncode != 0


# -- hunks ---------------------------------------------------------------------------------------------


def test_undone_hunk_is_missing_and_changed_hunk_altered(paths: WorkspacePaths) -> None:
    edit(paths.code / "alpha/core.py", "line_10 = 11\n", "line_10 = 10\n")
    edit(paths.code / "alpha/core.py", "line_40 = 41\n", "line_40 = 42\n")
    assert states(paths) == {
        **WHOLE,
        ("0001-ten", 1): ("missing", 10),
        ("0001-ten", 2): ("altered", 41),
    }
    assert [(d.patch, d.hunk) for d in look(paths).drift] == [("0001-ten", 1), ("0001-ten", 2)]


def test_a_hunk_in_src(paths: WorkspacePaths) -> None:
    (paths.root / "src/gamma/build.txt").write_text("one\ntwo\nthree\n")
    report = look(paths)
    assert [(d.path, d.component, d.patch, d.hunk) for d in report.drift] == [
        ("src/gamma/build.txt", "gamma", "0001-zwei", 1)
    ]
    assert next(one.hunks for one in report.patches if one.name == "0001-zwei") == [
        {"file": "src/gamma/build.txt", "line": 2, "state": "missing"}
    ]


# -- copies, read-only, other users --------------------------------------------------------------------


def copied(paths: WorkspacePaths, target: Path) -> WorkspacePaths:
    """As `cp -r` of what matters: no git folders."""
    shutil.copytree(
        paths.root, target, symlinks=True, ignore=shutil.ignore_patterns(".git", "git", "busy.lock")
    )
    return WorkspacePaths(target)


def test_a_copy_without_git_is_proven_from_the_receipt(
    stack: Stack, paths: WorkspacePaths, tmp_path: Path
) -> None:
    copy = copied(paths, tmp_path / "copy")
    assert not any(p.name == ".git" for p in copy.root.rglob("*"))
    env = {"PATH": str(tmp_path / "no-git-here")}
    for options in (["--deep"], []):
        done = ok(stack.run("verify", "-w", copy.root, *options, env=env))
    edit(copy.code / "alpha/core.py", "line_10 = 11\n", "line_10 = 10\n")
    done = stack.run("verify", "-w", copy.root, "--json", env=env)
    assert done.returncode == 3
    document = json.loads(done.stdout)
    assert document["drift"][0]["patch"] == "0001-ten"
    assert document["patches"][0]["hunks"][0]["state"] == "missing"


def test_a_read_only_workspace(stack: Stack, paths: WorkspacePaths) -> None:
    """Proven all the same; nothing is written, and nothing fails for want of writing."""
    edit(paths.code / "beta/b.py", "B = 1", "B = 2")
    for path in paths.root.rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o555)
    paths.root.chmod(0o555)
    before = {p: p.lstat().st_mtime_ns for p in paths.root.rglob("*")}
    for command, code in (["verify"], 3), (["verify", "--deep"], 3), (["status"], 0), (["diff"], 0):
        done = stack.run_unprivileged(*command, "-w", paths.root)
        assert done.returncode == code, done.stderr
    assert "+B = 2" in done.stdout
    assert {p: p.lstat().st_mtime_ns for p in paths.root.rglob("*")} == before


def test_verify_needs_nothing_heavy(stack: Stack, paths: WorkspacePaths) -> None:
    loaded = modules_after(["verify", "-w", paths.root], stack.env, paths.root)
    assert not loaded & {"pydantic", "yaml", "git", "unearth", "rich"}


def test_a_setup_that_swaps_meanwhile_is_waited_for(stack: Stack, paths: WorkspacePaths) -> None:
    """Verify in a loop while setups go back and forth: every answer is for one of the two locks."""
    answers = set()
    for manifest in (stack.new, stack.old, stack.new):
        process = stack.start("setup", "-m", manifest, "-w", paths.root)
        while process.poll() is None:
            report = look(paths)
            assert report.ok, report.drift
            answers.add(report.lock.manifest)
        assert process.returncode == 0, process.communicate()[1]
    assert look(paths).lock.manifest == "new"
    assert answers == {"old", "new"}


def test_a_changed_file_is_answered_with_a_command_that_can_be_copied(
    stack: Stack, paths: WorkspacePaths
) -> None:
    """Of what setup itself refuses, the manifest is that of its command line."""
    (paths.code / "alpha/core.py").write_text("")
    receipt_with(paths, lambda body: body["setup"].update(manifest=str(bundled_manifests()["quickstart"])))
    done = stack.run("verify", "-w", paths.root)
    command = f"npu-rl setup --manifest quickstart --workspace {paths.root} --discard"
    assert done.stdout.splitlines()[-1] == f"      {command}   # moves them aside"
    receipt_with(paths, lambda body: body["setup"].update(manifest="/x/own.yaml"))
    last = stack.run("verify", "-w", paths.root).stdout.splitlines()[-1]
    assert last.startswith("      NAME is the manifest file")
    receipt_with(paths, lambda body: body["setup"].update(manifest=str(bundled_manifests()["quickstart"])))
    with pytest.raises(WorkspaceError, match=re.escape(f"To put them aside: {command}")):
        require_locked(paths, lambda _: None, "x", None)
    refused = stack.lay(paths.root)
    assert f"npu-rl setup --manifest {stack.old} --workspace {paths.root} --discard" in refused.stderr
