"""Proving a workspace: what is found, whose it is, which hunk it hits, and what can't fool it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests
from npu_rl.common.errors import LockError, WorkspaceError
from npu_rl.stack.lock import lock_model
from npu_rl.workspace.folder.receipt import read_receipt, setup_hint
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.require_locked import require_locked
from tests.support import assert_told, modules_after, ok, run_program
from tests.workspace.stack import (
    CORE,
    ODD,
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
        (name, number): (hunk["state"], hunk["line"])
        for (component, name), hunks in look(paths, deep=deep).patches.items()
        for number, hunk in enumerate(hunks, 1)
        if component == "alpha"
    }


WHOLE = {
    ("0001-ten", 1): ("in place", 10),
    ("0001-ten", 2): ("in place", 41),
    ("0002-half", 1): ("in place", 21),
    ("0002-half", 2): ("in place", 1),
}


# -- the document --------------------------------------------------------------------------------------


def test_the_documented_json_of_a_clean_workspace(stack: Stack, paths: WorkspacePaths) -> None:
    lock = stack.lock(stack.old)
    hunks = {"0001-ten": [("alpha/core.py", 10), ("alpha/core.py", 41)]}
    hunks |= {
        "0002-half": [("alpha/core.py", 21), ("alpha/added.py", 1)],
        "0001-zwei": [("src/gamma/build.txt", 2)],
    }
    for options in ((), ("--deep",)):
        code, document = verify_json(stack, paths.root, *options)
        patches = [
            {
                "component": "gamma" if name == "0001-zwei" else "alpha",
                "name": name,
                "hunks": [{"file": file, "line": line, "state": "in place"} for file, line in places],
            }
            for name, places in hunks.items()
        ]
        ids = {"commit": lock.commit, "tree": lock.tree, "lock": lock_model.digest_of(lock)}
        lists: dict[str, list[str]] = {
            key: [] for key in ("drift", "built", "byte_code", "ignored", "own_work")
        }
        assert (code, document) == (0, {"ok": True, **ids, **lists, "patches": patches})


def test_drift_as_json_and_as_text(stack: Stack, paths: WorkspacePaths) -> None:
    edit(paths.code / "alpha/core.py", "line_10 = 11\n", "line_10 = 10\n")
    edit(paths.code / "beta/b.py", "B = 1", "B = 2")
    (paths.code / "train.log").write_text("")
    code, document = verify_json(stack, paths.root)
    assert (code, document["ok"], document["ignored"]) == (3, False, ["code/train.log"])
    keys = ["ok", "commit", "tree", "lock", "drift", "patches", "built", "byte_code", "ignored", "own_work"]
    assert list(document) == keys
    assert [tuple(row.values()) for row in document["drift"]] == [
        ("code/alpha/core.py", "modified", "alpha", "0001-ten", 1),
        ("code/beta/b.py", "modified", "beta", None, None),
    ]
    assert list(document["drift"][0]) == ["path", "kind", "component", "patch", "hunk"]
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


def test_drift_of_odd_file_names_is_reported(stack: Stack, paths: WorkspacePaths) -> None:
    for name in ODD:
        (paths.code / name).write_text("ODD = 2\n")
    code, document = verify_json(stack, paths.root)
    assert code == 3
    assert [(d["path"], d["kind"], d["component"]) for d in document["drift"]] == [
        (f"code/{name}", "modified", "alpha") for name in sorted(ODD)
    ]


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


def test_code_that_is_a_symlink_is_drift_whatever_it_leads_to(paths: WorkspacePaths) -> None:
    paths.code.rename(paths.root / "moved")
    paths.code.symlink_to("moved")
    assert found(paths) == [("code", "type")]
    assert set(states(paths).values()) == set(WHOLE.values())  # what Python would import is whole
    (paths.root / "moved/alpha/core.py").write_text("")
    assert ("code/alpha/core.py", "type") in found(paths)
    assert states(paths)[("0001-ten", 1)] == ("altered", 1)


def test_missing_code_folder_is_reported_file_by_file(paths: WorkspacePaths) -> None:
    shutil.rmtree(paths.code)
    report = look(paths)
    assert {d.kind for d in report.drift} == {"missing"}
    assert {state for state, _ in states(paths).values()} == {"missing"}


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


def test_receipt_and_lock_of_two_setups_do_not_go_together(stack: Stack, paths: WorkspacePaths) -> None:
    shutil.copy(lock_model.lock_path(stack.new), paths.lock)
    with pytest.raises(WorkspaceError, match="does not match its lock"):
        look(paths)


def test_a_lock_edited_by_hand(stack: Stack, paths: WorkspacePaths) -> None:
    paths.lock.write_text(paths.lock.read_text().replace("a stack of small", "a stack of large"))
    with pytest.raises(LockError, match="edited by hand"):
        look(paths)
    assert stack.run("verify", "-w", paths.root).returncode != 0


def test_a_folder_that_is_no_workspace(stack: Stack, tmp_path: Path) -> None:
    assert_told(stack.run("verify", "-w", tmp_path), "is not a workspace", code=3)


def test_what_changed_a_moment_ago_is_read_again_next_time(paths: WorkspacePaths) -> None:
    """A client of a network file system may serve old bytes with the new times of another host's change."""
    path = paths.code / "alpha/core.py"
    os.utime(path)  # its change time is now
    assert look(paths).ok
    record = json.loads(paths.stat.read_text())["roots"]["code"]
    assert "alpha/core.py" not in record
    assert look(paths).hashed > 0


# -- hunks ---------------------------------------------------------------------------------------------


def test_a_change_elsewhere_in_the_file_hits_no_hunk(paths: WorkspacePaths) -> None:
    edit(paths.code / "alpha/core.py", "line_55 = 55", "line_55 = 56")
    assert states(paths) == WHOLE
    drift = look(paths).drift
    assert [(d.path, d.patch, d.hunk) for d in drift] == [("code/alpha/core.py", None, None)]


def test_lines_added_above_shift_the_hunks(paths: WorkspacePaths) -> None:
    path = paths.code / "alpha/core.py"
    path.write_text("# one\n# two\n" + path.read_text())
    moved = {key: ("shifted", line + 2) for key, (_, line) in WHOLE.items()}
    assert states(paths) == {**moved, ("0002-half", 2): ("in place", 1)}


def test_undone_hunk_is_missing_and_changed_hunk_altered(paths: WorkspacePaths) -> None:
    edit(paths.code / "alpha/core.py", "line_10 = 11\n", "line_10 = 10\n")
    edit(paths.code / "alpha/core.py", "line_40 = 41\n", "line_40 = 42\n")
    assert states(paths) == {
        **WHOLE,
        ("0001-ten", 1): ("missing", 10),
        ("0001-ten", 2): ("altered", 41),
    }
    assert [(d.patch, d.hunk) for d in look(paths).drift] == [("0001-ten", 1), ("0001-ten", 2)]


def test_upstreams_own_file_again(paths: WorkspacePaths) -> None:
    (paths.code / "alpha/core.py").write_text(CORE)
    (paths.code / "alpha/added.py").unlink()
    assert {key: state for key, (state, _) in states(paths).items()} == dict.fromkeys(WHOLE, "missing")


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


def test_a_copy_has_no_diff_but_says_so(stack: Stack, paths: WorkspacePaths, tmp_path: Path) -> None:
    copy = copied(paths, tmp_path / "copy")
    edit(copy.code / "beta/b.py", "B = 1", "B = 2")
    assert_told(stack.run("diff", "-w", copy.root), "no git objects", code=3)


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


def test_a_pack_that_goes_away_while_it_is_looked_at_is_missing(stack: Stack, paths: WorkspacePaths) -> None:
    """As a setup that swaps does it: between lstat(2) and open(2) of the first pack that is read."""
    code = (
        "import os, sys\n"
        "def hook(event, arguments):\n"
        "    if event == 'open' and str(arguments[0]).endswith('.pack') and os.path.exists(arguments[0]):\n"
        "        os.unlink(arguments[0])\n"
        "sys.addaudithook(hook)\n"
        "from npu_rl.cli import main\n"
        "sys.argv = ['npu-rl', 'verify', '--deep', '-w', sys.argv[1]]\n"
        "main()\n"
    )
    done = run_program([sys.executable, "-c", code, paths.root], env=stack.env)
    assert (done.returncode, done.stderr) == (3, "")
    assert "missing    .npu-rl/git/objects/pack/" in done.stdout


@pytest.mark.parametrize("named", ["bundled", "wheel", "same lock", "own", "damaged", "damaged, own"])
def test_what_the_hint_names(paths: WorkspacePaths, named: str) -> None:
    """The manifest's name where it is a bundled one's, also for what another installation has laid; else the lock's."""
    bundled = bundled_manifests()["quickstart"]
    digest = json.loads(lock_model.lock_path(bundled).read_text())["digest"]
    changes = {
        "bundled": {"manifest": str(bundled)},
        "wheel": {"manifest": "/x/site-packages/npu_rl/_data/manifests/quickstart.yaml"},
        "same lock": {"manifest": "/x/manifests/quickstart.yaml", "lock": digest},
        "own": {"manifest": "/x/manifests/quickstart.yaml"},
    }
    if named in changes:
        receipt_with(paths, lambda body: body["setup"].update(changes[named]))
        hint = setup_hint(paths, read_receipt(paths).setup, "--discard")
    else:
        if named == "damaged":
            paths.lock.write_text(json.dumps({"manifest": "quickstart", "digest": digest}))
        paths.receipt.write_text("damaged")
        with pytest.raises(WorkspaceError) as caught:
            read_receipt(paths)
        hint = str(caught.value).partition("again: ")[2].strip() + " --discard"
    if "own" in named:
        assert hint.startswith(f"npu-rl setup --manifest NAME --workspace {paths.root}")
        assert "NAME is the manifest file of the stack old that you set it up from." in hint
    else:
        assert hint == f"npu-rl setup --manifest quickstart --workspace {paths.root} --discard"


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
