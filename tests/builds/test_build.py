"""Builds of a real C extension: what is taken, what a failing or straying one leaves, and what is stale."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.process import processes_of
from npu_rl.workspace.folder.built_products import built_products
from npu_rl.workspace.folder.receipt import read_receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.verify import verify
from tests.builds.conftest import BuiltStack
from tests.in_process import run_here
from tests.support import assert_told, ok, run_program
from tests.training.processes import lives, wait_for
from tests.workspace.stack import receipt_with, snapshot

pytestmark = [pytest.mark.second, pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")]


def states(paths: WorkspacePaths) -> dict[str, str]:
    return verify(paths, lambda _: None).built


def of_tree(paths: WorkspacePaths) -> dict[str, Any]:
    """The tree and what setup laid around it, as it is on disk."""
    found = snapshot(paths.root)
    return {
        str(path): (mode, content)
        for path, (mode, _, content) in found.items()
        if not str(path).startswith((".npu-rl/builds", ".npu-rl/stat.json", ".npu-rl/busy.lock"))
    }


def native(paths: WorkspacePaths) -> Path:
    (found,) = (paths.code / "ext").glob("_native*.so")
    return found


def test_products_are_used_listed_and_everything_else_is_left(
    built_stack: BuiltStack, built: WorkspacePaths
) -> None:
    done = ok(run_here(["verify", "-w", built.root, "--deep"], built_stack.env))
    assert f"  built here code/ext/{native(built).name}" in done.stdout
    assert "  built here src/ext/made.txt" in done.stdout
    code = "import sys; sys.path.insert(0, 'code'); import ext._native as n; print(n.answer())"
    ran = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=built.root, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "42\n"
    assert set(states(built).values()) == {"built here"}
    assert not list(built.root.rglob("left.o"))
    assert (built.code / "ext/__init__.py").read_text() == ""
    log = (built.hidden / "builds/ext.log").read_text()
    assert log.startswith(f"$ {sys.executable} build.py two words\nbuilding  a ")
    assert "hf_0123456789abcdefghij" not in log
    assert native(built).stat().st_mode & 0o777 == 0o755
    document = json.loads(run_here(["verify", "-w", built.root, "--json"], built_stack.env).stdout)
    assert document["built"] == states(built)


def test_nothing_is_built_without_being_asked_or_twice(built_stack: BuiltStack, bare: WorkspacePaths) -> None:
    assert states(bare) == {}
    first = ok(built_stack.setup(bare.root, "--build"))
    before = snapshot(bare.root)
    again = ok(built_stack.setup(bare.root, "--build", BUILD_MODE="fails"))
    assert ("  built  code/ext" in first.stdout, "  built already  code/ext" in again.stdout) == (True, True)
    assert "nothing to do" in ok(built_stack.setup(bare.root)).stdout
    assert snapshot(bare.root).keys() == before.keys()


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("fails", ("The build of ext failed", "ended with status 1", "undefined reference to aclrtMalloc")),
        ("nothing", ("The build of ext made no ext/_native*.so", "ended well")),
    ],
)
def test_a_build_that_fails_leaves_everything_as_it_was(
    built_stack: BuiltStack, bare: WorkspacePaths, mode: str, words: tuple[str, ...]
) -> None:
    before = of_tree(bare)
    assert_told(built_stack.setup(bare.root, "--build", BUILD_MODE=mode), *words)
    assert of_tree(bare) == before
    ok(built_stack.setup(bare.root, "--build"))


def test_locked_files_that_a_build_changes_are_named_and_its_products_refused(
    built_stack: BuiltStack, bare: WorkspacePaths
) -> None:
    done = built_stack.setup(bare.root, "--build", BUILD_MODE="elsewhere")
    assert_told(
        done, "Locked files were changed during the build of ext", "missing    code/other/__init__.py",
        "mode       code/other/run.sh", "modified   activate", code=3,
    )  # fmt: skip
    assert "evil.py" not in done.stderr  # it is in no lock
    assert (bare.code / "ext/evil.py").exists() and (bare.root / "activate").read_text() == "rm -rf /"
    assert states(bare) == {} and not list(bare.code.rglob("_native*.so"))


@pytest.mark.parametrize("commits", [True, False])
def test_what_a_person_does_during_a_build_stays(
    built_stack: BuiltStack, bare: WorkspacePaths, tmp_path: Path, *, commits: bool
) -> None:
    """Without a change of a locked file, the products are taken beside the person's commit and new file."""
    sign, code = tmp_path / "sign", bare.code
    process = built_stack.start(bare.root, sign)
    wait_for(lambda: sign.exists() and sign.read_text() != "")
    (code / "ext/idea.py").write_text("IDEA = 1\n")
    (code / "mine.txt").write_text("")
    if commits:
        with (code / "other/__init__.py").open("a") as file:
            file.write("# an hour of work\n")
    git: list[str | Path] = ["git", "-C", str(code), "-c", "user.name=A", "-c", "user.email=a@b"]
    ok(run_program([*git, "add", "-A", "."]))
    ok(run_program([*git, "commit", "-qm", "mine"]))
    mine = ok(run_program([*git, "rev-parse", "HEAD"])).stdout
    if commits:
        (code / "other/run.sh").write_text("not committed")
    sign.unlink()
    _, told = process.communicate(timeout=60)
    assert process.returncode == (3 if commits else 0), told
    assert ok(run_program([*git, "rev-parse", "HEAD"])).stdout == mine
    assert (code / "ext/idea.py").read_text() == "IDEA = 1\n"
    assert len(list(code.rglob("_native*.so"))) == (0 if commits else 1)
    if commits:
        assert "other/__init__.py" in told and "other/run.sh" in told
        assert (code / "other/__init__.py").read_text() == "O = 1\n# an hour of work\n"
        assert (code / "other/run.sh").read_text() == "not committed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_leaves_the_tree_and_no_process(
    built_stack: BuiltStack, bare: WorkspacePaths, tmp_path: Path, number: signal.Signals
) -> None:
    before = of_tree(bare)
    sign = tmp_path / "sign"
    process = built_stack.start(bare.root, sign)
    wait_for(lambda: sign.exists() and sign.read_text() != "")
    (folder,) = bare.hidden.glob("build-*")
    mark = folder.name.replace("-", "")
    os.kill(process.pid, number)
    process.communicate(timeout=60)
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert of_tree(bare) == before
        assert processes_of(mark) == []
    else:
        ok(run_here(["verify", "-w", bare.root, "--deep"], built_stack.env))
        assert lives(int(sign.read_text()))
    ok(built_stack.setup(bare.root, "--build"))
    assert processes_of(mark) == []
    assert not list(bare.hidden.glob("build-*"))
    assert set(states(bare).values()) == {"built here"}


@pytest.mark.parametrize("moved", [0, 1])
def test_a_build_that_is_killed_while_it_places_products_is_repeated(
    built_stack: BuiltStack, bare: WorkspacePaths, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    """The receipt lists products of which some are missing."""
    real, calls = Path.replace, iter(range(9))

    def replace(self: Path, target: Path) -> Path:
        if "build-" in str(self) and next(calls) == moved:
            raise KeyboardInterrupt
        return real(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", replace)
        assert built_stack.setup(bare.root, "--build").returncode != 0
    assert list(states(bare).values()).count("missing") == 2 - moved
    ok(built_stack.setup(bare.root, "--build"))
    assert sorted(states(bare).values()) == ["built here", "built here"]


def test_products_stay_for_the_same_sources_and_go_with_others(
    built_stack: BuiltStack, built: WorkspacePaths
) -> None:
    """The source of `two` is another, and `flag` has another command; a setup again has neither."""
    assert len(states(built)) == 2
    (built.root / "activate").unlink()
    ok(built_stack.setup(built.root))
    assert set(states(built).values()) == {"built here"}
    ok(built_stack.setup(built.root, manifest="two"))
    assert states(built) == {}
    ok(built_stack.setup(built.root, "--build", manifest="two"))
    code = "import sys; sys.path.insert(0, 'code'); import ext._native as n; print(n.answer())"
    ran = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=built.root, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "43\n"
    ok(built_stack.setup(built.root, manifest="flag"))
    assert states(built) == {}


def test_a_product_is_stale_when_its_source_is_edited_and_drift_when_it_is_changed(
    built_stack: BuiltStack, built: WorkspacePaths
) -> None:
    (built.root / "src/ext/native.c").write_text("")
    done = run_here(["verify", "-w", built.root], built_stack.env)
    assert (done.returncode, "  stale      code/ext/_native" in done.stdout) == (3, True)
    ok(built_stack.setup(built.root, "--discard"))
    assert set(states(built).values()) == {"built here"}
    native(built).write_bytes(native(built).read_bytes() + b"\0")
    (built.root / "src/ext/made.txt").unlink()
    done = run_here(["verify", "-w", built.root], built_stack.env)
    assert done.returncode == 3
    assert "modified   code/ext/_native" in done.stdout
    assert "missing    src/ext/made.txt" in done.stdout
    assert_told(built_stack.setup(built.root, "--build"), "would replace", code=3)
    ok(built_stack.setup(built.root, "--discard", "--build"))
    assert set(states(built).values()) == {"built here"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "other/x.so"},
        {"path": "code/../x"},
        {"sha256": "0" * 63},
        {"size": "4"},
        {"executable": 1},
        {"more": 1},
    ],
)
def test_a_receipt_with_another_product_is_refused(
    built_stack: BuiltStack, built: WorkspacePaths, wrong: dict[str, object]
) -> None:
    first, *rest = read_receipt(built).setup["built"]
    for listed in ([{**first, **wrong}, *rest], [first, first], "none"):
        receipt_with(built, lambda body, listed=listed: body["setup"].update(built=listed))
        assert run_here(["verify", "-w", built.root], built_stack.env).returncode == 3


def test_a_locks_digest_alone_does_not_vouch_for_products(
    built_stack: BuiltStack, bare: WorkspacePaths, built: WorkspacePaths
) -> None:
    """A receipt that is forged can list any file as a product; the environment id covers what it says of them."""
    digest = verify(built, lambda _: None).lock_digest
    environment = json.loads(run_here(["status", "-w", built.root, "--json"], built_stack.env).stdout)[
        "environment"
    ]
    assert environment["parts"]["built"]["value"] == {
        path: one.sha256 for path, one in built_products(read_receipt(built).setup).items()
    }
    verified = ["verify", "-w", built.root, "--expect"]
    assert_told(run_here([*verified, digest], built_stack.env), "a lock's digest does not cover", code=3)
    ok(run_here([*verified, digest, "--expect", environment["id"]], built_stack.env))
    ok(run_here(["verify", "-w", bare.root, "--expect", digest], built_stack.env))
    evil = native(built)
    evil.write_bytes(b"evil")
    changed = {"sha256": hashlib.sha256(b"evil").hexdigest(), "size": 4}
    listed = read_receipt(built).setup["built"]
    forged = [{**one, **(changed if one["path"].startswith("code/") else {})} for one in listed]
    receipt_with(built, lambda body: body["setup"].update(built=forged))
    ok(run_here(["verify", "-w", built.root, "--deep"], built_stack.env))  # as documented
    told = run_here([*verified, environment["id"]], built_stack.env)
    assert_told(told, "differs from the expected one", code=3)
