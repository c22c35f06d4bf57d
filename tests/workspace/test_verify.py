"""Proving a workspace: what is found, whose it is, which hunk it hits, and what can't fool it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests
from npu_rl.common.errors import LockError, NpuRlError, WorkspaceError
from npu_rl.stack.lock import lock_model
from npu_rl.workspace.folder.layout import Layout
from npu_rl.workspace.folder.receipt import read_receipt, setup_hint
from npu_rl.workspace.verification.require_locked import require_locked
from tests.workspace.stack import CORE, ODD, Stack, found, look, receipt_with, verify_json, without_privileges


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, path
    path.write_text(text.replace(old, new))


def states(layout: Layout, *, deep: bool = False) -> dict[tuple[str, int], tuple[str, int]]:
    """(patch, number of the hunk) to (state, line), for the hunks of `alpha`."""
    return {
        (name, number): (hunk["state"], hunk["line"])
        for (component, name), hunks in look(layout, deep=deep).patches.items()
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


def test_the_documented_json_of_a_clean_workspace(stack: Stack, layout: Layout) -> None:
    lock = stack.lock(stack.old)
    for options in ((), ("--deep",)):
        code, document = verify_json(stack, layout.root, *options)
        assert code == 0
        assert document == {
            "ok": True,
            "commit": lock.commit,
            "tree": lock.tree,
            "lock": lock_model.digest_of(lock),
            "drift": [],
            "patches": [
                {
                    "component": "alpha",
                    "name": "0001-ten",
                    "hunks": [
                        {"file": "alpha/core.py", "line": 10, "state": "in place"},
                        {"file": "alpha/core.py", "line": 41, "state": "in place"},
                    ],
                },
                {
                    "component": "alpha",
                    "name": "0002-half",
                    "hunks": [
                        {"file": "alpha/core.py", "line": 21, "state": "in place"},
                        {"file": "alpha/added.py", "line": 1, "state": "in place"},
                    ],
                },
                {
                    "component": "gamma",
                    "name": "0001-zwei",
                    "hunks": [{"file": "src/gamma/build.txt", "line": 2, "state": "in place"}],
                },
            ],
            "byte_code": [],
            "ignored": [],
        }


def test_the_documented_json_of_drift(stack: Stack, layout: Layout) -> None:
    edit(layout.code / "alpha/core.py", "line_10 = 11\n", "line_10 = 10\n")
    edit(layout.code / "beta/b.py", "B = 1", "B = 2")
    code, document = verify_json(stack, layout.root)
    assert code == 3
    assert list(document) == ["ok", "commit", "tree", "lock", "drift", "patches", "byte_code", "ignored"]
    assert document["ok"] is False
    assert document["drift"] == [
        {
            "path": "code/alpha/core.py",
            "kind": "modified",
            "component": "alpha",
            "patch": "0001-ten",
            "hunk": 1,
        },
        {"path": "code/beta/b.py", "kind": "modified", "component": "beta", "patch": None, "hunk": None},
    ]
    assert document["patches"][0]["hunks"][0] == {"file": "alpha/core.py", "line": 10, "state": "missing"}


def test_people_read_the_same(stack: Stack, layout: Layout) -> None:
    edit(layout.code / "alpha/core.py", "line_10 = 11\n", "line_10 = 10\n")
    (layout.code / "train.log").write_text("")
    done = stack.run("verify", "-w", layout.root)
    assert done.returncode == 3
    assert "modified   code/alpha/core.py  (alpha, 0001-ten hunk 1)" in done.stdout
    assert "missing  alpha/core.py:10" in done.stdout
    assert "  ignored    code/train.log  (log, not from the lock)\n" in done.stdout
    assert "1 of " in done.stdout
    clean = stack.run("verify", "-w", stack.make(layout.root.parent / "other").root)
    assert clean.returncode == 0
    assert stack.lock(stack.old).tree in clean.stdout


# -- every kind, on a workspace ------------------------------------------------------------------------


def test_each_kind_with_its_component(layout: Layout) -> None:
    code = layout.code
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
    edit(layout.root / "src/gamma/csrc/k.cpp", "int k;", "int j;")
    report = look(layout)
    assert [(d.path, d.kind, d.component) for d in report.drift] == [
        ("code/alpha-1.0.dist-info/METADATA", "modified", "alpha"),
        ("code/alpha/deep/er/leaf.py", "type", "alpha"),
        ("code/alpha/extra/__init__.py", "untracked", "alpha"),
        ("code/alpha/run.sh", "mode", "alpha"),
        ("code/alpha/same_a.py", "type", "alpha"),
        ("code/beta/__init__.py", "missing", "beta"),
        ("code/beta/b.py", "modified", "beta"),
        ("code/random.py", "untracked", None),
        ("src/gamma/csrc/k.cpp", "modified", "gamma"),
    ]
    assert report.ignored == {"code/alpha/out.log": "log"}


def test_the_runtime_is_proven_too(layout: Layout) -> None:
    (layout.code / "npu_rl_runtime/switches.py").write_text("")
    assert [(d.path, d.component) for d in look(layout).drift] == [
        ("code/npu_rl_runtime/switches.py", "npu_rl_runtime")
    ]


@pytest.mark.parametrize("name", ODD)
def test_odd_names(stack: Stack, layout: Layout, name: str) -> None:
    (layout.code / name).write_text("ODD = 2\n")
    code, document = verify_json(stack, layout.root)
    assert code == 3
    assert [(d["path"], d["kind"], d["component"]) for d in document["drift"]] == [
        (f"code/{name}", "modified", "alpha")
    ]


def test_names_that_are_no_text(stack: Stack, layout: Layout) -> None:
    os.close(os.open(os.fsencode(layout.code) + b"/alpha/\xff.py", os.O_CREAT | os.O_WRONLY))
    (layout.code / "größe.py").write_text("")
    for encoding in ("utf-8:surrogateescape", "utf-8:strict", "ascii:strict", "latin-1"):
        env = {"PYTHONIOENCODING": encoding}
        done = stack.run("verify", "-w", layout.root, env=env)
        assert done.returncode == 3, done.stderr
        assert done.stdout.count("  untracked") == 2
        done = stack.run("verify", "-w", layout.root, "--json", env=env)
        assert [d["path"] for d in json.loads(done.stdout)["drift"]] == [
            "code/alpha/\udcff.py",
            "code/größe.py",
        ]
        done = stack.run("setup", "-m", stack.new, "-w", layout.root, env=env)
        assert (done.returncode, "Traceback" in done.stderr) == (3, False)


def test_code_that_is_a_symlink_is_drift_whatever_it_leads_to(layout: Layout) -> None:
    layout.code.rename(layout.root / "moved")
    layout.code.symlink_to("moved")
    assert found(layout) == [("code", "type")]
    assert set(states(layout).values()) == set(WHOLE.values())  # what Python would import is whole
    (layout.root / "moved/alpha/core.py").write_text("")
    assert ("code/alpha/core.py", "type") in found(layout)
    assert states(layout)[("0001-ten", 1)] == ("altered", 1)


def test_src_that_is_a_symlink_is_drift(layout: Layout) -> None:
    (layout.root / "src").rename(layout.root / "moved")
    (layout.root / "src").symlink_to("moved")
    assert found(layout) == [("src/gamma", "type")]


def test_code_that_is_gone(layout: Layout) -> None:
    shutil.rmtree(layout.code)
    report = look(layout)
    assert {d.kind for d in report.drift} == {"missing"}
    assert {state for state, _ in states(layout).values()} == {"missing"}


# -- quick is not blind --------------------------------------------------------------------------------


def test_same_size_and_old_times(layout: Layout) -> None:
    assert found(layout) == []
    path = layout.code / "alpha/core.py"
    before = path.stat()
    path.write_text(path.read_text().replace("line_1 = 1", "line_1 = 7"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert found(layout) == [("code/alpha/core.py", "modified")]
    assert found(layout) == [("code/alpha/core.py", "modified")]  # and it stays found


def test_edits_right_after_setup_are_found(stack: Stack, tmp_path: Path) -> None:
    for count in range(5):
        layout = stack.make(tmp_path / f"w{count}")
        path = layout.code / "alpha/same_a.py"
        before = path.stat()
        path.write_text("A = 7\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert found(layout) == [("code/alpha/same_a.py", "modified")]


def test_a_second_look_reads_nothing(layout: Layout) -> None:
    """As soon as the files are old enough for their times to tell of a change."""
    deadline = time.monotonic() + 30
    while look(layout).hashed:
        assert time.monotonic() < deadline
    report = look(layout)
    assert (report.ok, report.hashed) == (True, 0)
    assert look(layout, deep=True).hashed == report.files


def test_bits_in_the_users_index_hide_nothing(layout: Layout, stack: Stack) -> None:
    for bit, name in (("--skip-worktree", "alpha/core.py"), ("--assume-unchanged", "beta/b.py")):
        subprocess.run(["git", "update-index", bit, name], cwd=layout.code, env=dict(stack.env), check=True)
        with (layout.code / name).open("a") as file:
            file.write("# changed\n")
    status = subprocess.run(
        ["git", "status", "--short"], cwd=layout.code, env=dict(stack.env), capture_output=True, check=True
    )
    assert status.stdout == b""
    assert found(layout) == [("code/alpha/core.py", "modified"), ("code/beta/b.py", "modified")]


def test_ignore_rules_and_attributes_hide_nothing(layout: Layout) -> None:
    (layout.git / "code/info/exclude").write_text("*\n")
    (layout.git / "code/info/attributes").write_text("* text eol=crlf\n")
    (layout.code / ".gitignore").write_text("*\n")
    (layout.code / "random.py").write_text("")
    assert found(layout) == [("code/.gitignore", "untracked"), ("code/random.py", "untracked")]


def test_deep_trusts_no_record(layout: Layout) -> None:
    look(layout)
    path = layout.code / "beta/b.py"
    path.write_text("B = 2\n")
    status = path.lstat()
    record = json.loads(layout.stat.read_text())
    record["roots"]["code"]["beta/b.py"] = [
        status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode
    ]  # fmt: skip
    layout.stat.write_text(json.dumps(record))
    assert found(layout) == []  # a forged record is believed by the quick look ...
    assert found(layout, deep=True) == [("code/beta/b.py", "modified")]  # ... and by nobody else
    assert found(layout) == [("code/beta/b.py", "modified")]


@pytest.mark.parametrize("text", ["", "{", '{"roots": []}', '{"receipt": 1, "roots": {"code": 1}}', "\0\0"])
def test_a_damaged_record_is_made_anew(layout: Layout, text: str) -> None:
    layout.stat.write_text(text)
    report = look(layout)
    assert report.ok
    assert report.hashed == report.files


# -- receipt and lock ----------------------------------------------------------------------------------


def forge(layout: Layout, change: str, to: str) -> None:
    """A receipt changed by somebody who knows how its digest is made."""
    head, rest = layout.receipt.read_text()[:11], layout.receipt.read_text()[75:]
    assert change in rest
    rest = rest.replace(change, to)
    layout.receipt.write_text(head + hashlib.sha256(rest.encode()).hexdigest() + rest)


@pytest.mark.parametrize(
    "damage", ["cut", "empty", "garbage", "list", "edited", "newer", "gone-key", "nesting"]
)
def test_a_damaged_receipt_is_refused(stack: Stack, layout: Layout, damage: str) -> None:
    text = layout.receipt.read_text()
    layout.receipt.write_text(
        {
            "cut": text[: len(text) // 2],
            "empty": "",
            "garbage": "\0\1\2",
            "list": "[1]",
            "edited": text.replace("beta/b.py", "beta/c.py"),
            "newer": text.replace('"receipt_format":1', '"receipt_format":2'),
            "gone-key": '{"receipt_format":1}',
            "nesting": "[" * 100_000,
        }[damage]
    )
    done = stack.run("verify", "-w", layout.root)
    assert done.returncode == 3, done.stderr
    assert str(layout.receipt) in done.stderr
    assert "npu-rl setup" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_forged_receipt_does_not_give_the_locked_tree(layout: Layout) -> None:
    changed = b"B = 666\n"
    old = hashlib.sha1(b"blob 6\0B = 1\n").hexdigest()
    (layout.code / "beta/b.py").write_bytes(changed)
    forge(layout, old, hashlib.sha1(b"blob %d\0" % len(changed) + changed).hexdigest())
    for deep in (False, True):
        with pytest.raises(WorkspaceError, match="does not describe the locked tree of code"):
            look(layout, deep=deep)


def test_a_forged_patch_text_is_found(layout: Layout) -> None:
    forge(layout, "Ten is eleven", "Ten is twelve")
    with pytest.raises(WorkspaceError, match="lacks the text of a locked patch"):
        look(layout)


def test_receipt_and_lock_of_two_setups_do_not_go_together(stack: Stack, layout: Layout) -> None:
    shutil.copy(lock_model.lock_path(stack.new), layout.lock)
    with pytest.raises(WorkspaceError, match="does not match its lock"):
        look(layout)


def test_a_lock_edited_by_hand(stack: Stack, layout: Layout) -> None:
    layout.lock.write_text(layout.lock.read_text().replace("a stack of small", "a stack of large"))
    with pytest.raises(LockError, match="edited by hand"):
        look(layout)
    assert stack.run("verify", "-w", layout.root).returncode != 0


def test_a_folder_that_is_no_workspace(stack: Stack, tmp_path: Path) -> None:
    done = stack.run("verify", "-w", tmp_path)
    assert done.returncode == 3
    assert "is not a workspace" in done.stderr


def test_what_changed_a_moment_ago_is_read_again_next_time(layout: Layout) -> None:
    """A client of a network file system may serve old bytes with the new times of another host's change."""
    path = layout.code / "alpha/core.py"
    os.utime(path)  # its change time is now
    assert look(layout).ok
    record = json.loads(layout.stat.read_text())["roots"]["code"]
    assert "alpha/core.py" not in record
    assert look(layout).hashed > 0


# -- hunks ---------------------------------------------------------------------------------------------


def test_untouched(layout: Layout) -> None:
    assert states(layout) == WHOLE


def test_a_change_elsewhere_in_the_file_hits_no_hunk(layout: Layout) -> None:
    edit(layout.code / "alpha/core.py", "line_55 = 55", "line_55 = 56")
    assert states(layout) == WHOLE
    drift = look(layout).drift
    assert [(d.path, d.patch, d.hunk) for d in drift] == [("code/alpha/core.py", None, None)]


def test_shifted(layout: Layout) -> None:
    path = layout.code / "alpha/core.py"
    path.write_text("# one\n# two\n" + path.read_text())
    assert states(layout) == {
        ("0001-ten", 1): ("shifted", 12),
        ("0001-ten", 2): ("shifted", 43),
        ("0002-half", 1): ("shifted", 23),
        ("0002-half", 2): ("in place", 1),
    }


def test_missing_and_altered(layout: Layout) -> None:
    edit(layout.code / "alpha/core.py", "line_10 = 11\n", "line_10 = 10\n")
    edit(layout.code / "alpha/core.py", "line_40 = 41\n", "line_40 = 42\n")
    assert states(layout) == {
        **WHOLE,
        ("0001-ten", 1): ("missing", 10),
        ("0001-ten", 2): ("altered", 41),
    }
    assert [(d.patch, d.hunk) for d in look(layout).drift] == [("0001-ten", 1), ("0001-ten", 2)]


def test_an_added_line_taken_out(layout: Layout) -> None:
    edit(layout.code / "alpha/core.py", "line_20_5 = 20.5\n", "")
    assert states(layout) == {
        **WHOLE,
        ("0002-half", 1): ("missing", 21),
        ("0001-ten", 2): ("shifted", 40),
    }


def test_upstreams_own_file_again(layout: Layout) -> None:
    (layout.code / "alpha/core.py").write_text(CORE)
    (layout.code / "alpha/added.py").unlink()
    assert {key: state for key, (state, _) in states(layout).items()} == dict.fromkeys(WHOLE, "missing")


def test_a_hunk_in_src(layout: Layout) -> None:
    (layout.root / "src/gamma/build.txt").write_text("one\ntwo\nthree\n")
    report = look(layout)
    assert [(d.path, d.component, d.patch, d.hunk) for d in report.drift] == [
        ("src/gamma/build.txt", "gamma", "0001-zwei", 1)
    ]
    assert report.patches[("gamma", "0001-zwei")] == [
        {"file": "src/gamma/build.txt", "line": 2, "state": "missing"}
    ]


def test_a_pipe_in_place_of_a_patched_file(layout: Layout) -> None:
    (layout.code / "alpha/core.py").unlink()
    os.mkfifo(layout.code / "alpha/core.py")
    assert states(layout)[("0001-ten", 1)] == ("missing", 0)


# -- copies, read-only, other users --------------------------------------------------------------------


def copied(layout: Layout, target: Path) -> Layout:
    """As `cp -r` of what matters: no git folders."""
    shutil.copytree(
        layout.root, target, symlinks=True, ignore=shutil.ignore_patterns(".git", "git", "busy.lock")
    )
    return Layout(target)


def test_a_copy_without_git_is_proven_from_the_receipt(stack: Stack, layout: Layout, tmp_path: Path) -> None:
    copy = copied(layout, tmp_path / "copy")
    assert not any(p.name == ".git" for p in copy.root.rglob("*"))
    env = {"PATH": str(tmp_path / "no-git-here")}
    for options in (["--deep"], []):
        done = stack.run("verify", "-w", copy.root, *options, env=env)
        assert done.returncode == 0, done.stderr
    edit(copy.code / "alpha/core.py", "line_10 = 11\n", "line_10 = 10\n")
    done = stack.run("verify", "-w", copy.root, "--json", env=env)
    assert done.returncode == 3
    document = json.loads(done.stdout)
    assert document["drift"][0]["patch"] == "0001-ten"
    assert document["patches"][0]["hunks"][0]["state"] == "missing"


def test_a_copy_has_no_diff_but_says_so(stack: Stack, layout: Layout, tmp_path: Path) -> None:
    copy = copied(layout, tmp_path / "copy")
    edit(copy.code / "beta/b.py", "B = 1", "B = 2")
    done = stack.run("diff", "-w", copy.root)
    assert done.returncode == 3
    assert "no git objects" in done.stderr


def test_a_moved_workspace(stack: Stack, layout: Layout, tmp_path: Path) -> None:
    moved = Layout(tmp_path / "moved here")
    layout.root.rename(moved.root)
    assert found(moved) == []
    assert found(moved, deep=True) == []


def test_a_read_only_workspace(stack: Stack, layout: Layout) -> None:
    """Proven all the same; nothing is written, and nothing fails for want of writing."""
    edit(layout.code / "beta/b.py", "B = 1", "B = 2")
    for path in layout.root.rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o555)
    layout.root.chmod(0o555)
    before = {p: p.lstat().st_mtime_ns for p in layout.root.rglob("*")}
    for command, code in (["verify"], 3), (["verify", "--deep"], 3), (["status"], 0), (["diff"], 0):
        done = without_privileges(stack, *command, "-w", layout.root)
        assert done.returncode == code, done.stderr
    assert "+B = 2" in done.stdout
    assert {p: p.lstat().st_mtime_ns for p in layout.root.rglob("*")} == before


def test_a_file_that_may_not_be_read_is_an_error(stack: Stack, layout: Layout) -> None:
    (layout.code / "beta/b.py").chmod(0)
    done = without_privileges(stack, "verify", "--deep", "-w", layout.root)
    assert done.returncode == 3
    assert "No permission" in done.stderr
    assert "beta/b.py" in done.stderr


def test_verify_needs_nothing_heavy(stack: Stack, layout: Layout) -> None:
    script = (
        "import sys; sys.argv = ['npu-rl', 'verify', '-w', sys.argv[1]]\n"
        "from npu_rl.cli import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "print(sorted({'pydantic', 'yaml', 'git', 'unearth', 'rich'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(layout.root)],
        env=dict(stack.env), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_setup_that_swaps_meanwhile_is_waited_for(stack: Stack, layout: Layout) -> None:
    """Verify in a loop while setups go back and forth: every answer is for one of the two locks."""
    answers = set()
    for manifest in (stack.new, stack.old, stack.new):
        process = subprocess.Popen(
            [sys.executable, "-m", "npu_rl", "setup", "-m", str(manifest), "-w", str(layout.root)],
            env=dict(stack.env), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        while process.poll() is None:
            report = look(layout)
            assert report.ok, report.drift
            answers.add(report.lock.manifest)
        assert process.returncode == 0, process.communicate()[1]
    assert look(layout).lock.manifest == "new"
    assert answers == {"old", "new"}


def test_errors_are_of_the_one_family(layout: Layout) -> None:
    layout.receipt.unlink()
    with pytest.raises(NpuRlError):
        look(layout)


def test_a_pack_that_goes_away_while_it_is_looked_at_is_missing(stack: Stack, layout: Layout) -> None:
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
    done = subprocess.run(
        [sys.executable, "-c", code, layout.root],
        env=dict(stack.env),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert "missing    .npu-rl/git/objects/pack/" in done.stdout


@pytest.mark.parametrize("named", ["bundled", "wheel", "same lock", "own", "damaged", "damaged, own"])
def test_what_the_hint_names(layout: Layout, named: str) -> None:
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
        receipt_with(layout, lambda body: body["setup"].update(changes[named]))
        hint = setup_hint(layout, read_receipt(layout).setup, "--discard")
    else:
        if named == "damaged":
            layout.lock.write_text(json.dumps({"manifest": "quickstart", "digest": digest}))
        layout.receipt.write_text("damaged")
        with pytest.raises(WorkspaceError) as caught:
            read_receipt(layout)
        hint = str(caught.value).partition("again: ")[2].strip() + " --discard"
    if "own" in named:
        assert hint.startswith(f"npu-rl setup --manifest NAME --workspace {layout.root}")
        assert "NAME is your own manifest file of the stack old, from which you set it up." in hint
    else:
        assert hint == f"npu-rl setup --manifest quickstart --workspace {layout.root} --discard"


def test_a_changed_file_is_answered_with_a_command_that_can_be_copied(stack: Stack, layout: Layout) -> None:
    """Of what setup itself refuses, the manifest is that of its command line."""
    (layout.code / "alpha/core.py").write_text("")
    receipt_with(layout, lambda body: body["setup"].update(manifest=str(bundled_manifests()["quickstart"])))
    done = stack.run("verify", "-w", layout.root)
    command = f"npu-rl setup --manifest quickstart --workspace {layout.root} --discard"
    assert done.stdout.splitlines()[-1].endswith(f"To move them aside: {command}")
    receipt_with(layout, lambda body: body["setup"].update(manifest="/x/own.yaml"))
    assert (
        stack.run("verify", "-w", layout.root).stdout.splitlines()[-1].startswith("NAME is your own manifest")
    )
    receipt_with(layout, lambda body: body["setup"].update(manifest=str(bundled_manifests()["quickstart"])))
    with pytest.raises(WorkspaceError, match=re.escape(f"To put them aside: {command}")):
        require_locked(layout, lambda _: None, "x", None)
    refused = stack.lay(layout.root)
    assert f"npu-rl setup --manifest {stack.old} --workspace {layout.root} --discard" in refused.stderr
