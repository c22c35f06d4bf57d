"""`npu-rl lock` as a command: what `--check` passes and fails, what is written where, the same lock everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from npu_rl.stack.lock import lock_model
from tests.resolve.world import World, component, pull, request
from tests.support import ROOT, Repo, assert_told, clean_env, hostile_user, ok, run_cli, run_program

PATCH = """\
Subject: Answer

Why: a test needs it.
How: one line.
Upstream-Status: inappropriate [a test]
Verified-By: tests/resolve/test_command.py::test_check_passes_and_fails
Needs-NPU: nothing
Retire-When: never
---
--- a/pkg/a.py
+++ b/pkg/a.py
@@ -1,2 +1,2 @@
 one
-two
+42
"""


class Installation:
    """A copy of npu-rl with a bundled manifest `own` and its patchset, where files may be changed."""

    def __init__(self, world: World, up: Repo) -> None:
        self.root = world.root / "site"
        ignore = shutil.ignore_patterns(
            "_data"
        )  # its byte code comes along: compiling takes a second a process
        shutil.copytree(ROOT / "npu_rl", self.root / "npu_rl", ignore=ignore)
        patchset = self.root / "patchsets" / "up" / "1"
        patchset.mkdir(parents=True)
        (patchset / "series").write_text("0001-answer.patch\n")
        self.patch = patchset / "0001-answer.patch"
        self.patch.write_text(PATCH)
        body = {
            "schema": 1,
            "name": "own",
            "title": "A test",
            "device": "cpu",
            "components": {"up": component(up, patches=["up/1"])},
        }
        (self.root / "manifests").mkdir()
        self.manifest = self.root / "manifests" / "own.yaml"
        self.manifest.write_text(json.dumps(body))
        self.lock = self.manifest.with_name("own.lock.json")
        self.runtime = self.root / "npu_rl" / "runtime" / "switches.py"
        self.env = {**world.env, "PYTHONPATH": str(self.root)}

    def run(self, *args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        return run_cli(args, {**self.env, **env}, self.root)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """One for all tests, which leave its files as they were."""
    root = tmp_path_factory.mktemp("installed")
    world = World(root, clean_env(root))
    up = world.upstream({"pkg/a.py": "one\ntwo\n"})
    own = Installation(world, up)
    ok(own.run("lock", "-m", own.manifest, "-o", own.lock))
    return own


@pytest.mark.second  # nine commands
def test_check_passes_and_fails(installed: Installation) -> None:
    own = installed
    for name in ("own", own.manifest):
        done = own.run("lock", "-m", name, "--check")
        assert (done.returncode, "up to date" in done.stdout) == (0, True), done.stderr
    before = own.lock.read_bytes()
    edits = [
        (own.manifest, lambda text: text.replace("A test", "Another title"), "manifest_digest"),
        (own.patch, lambda text: text.replace("+42", "+43"), "up: result, patches"),
        (own.runtime, lambda text: text + "\n# changed\n", "runtime"),
    ]
    for (path, edit, named), name in zip(edits, ("own", own.manifest, "own"), strict=True):
        text = path.read_text()
        path.write_text(edit(text))
        assert_told(own.run("lock", "-m", name, "--check"), "The lock does not match its manifest", named)
        path.write_text(text)
    assert own.lock.read_bytes() == before


def test_a_bundled_manifest_comes_with_its_lock(installed: Installation) -> None:
    own = installed
    before = own.lock.read_bytes()
    assert_told(own.run("lock", "-m", "own"), "own is a bundled manifest", "--output", code=2)
    assert own.lock.read_bytes() == before
    elsewhere = own.root / "mine.json"
    assert own.run("lock", "-m", "own", "--output", elsewhere).returncode == 0
    assert elsewhere.read_bytes() == before
    ok(own.run("setup", "-m", "own", "--lock", elsewhere, "-w", own.root / "w"))
    assert (own.root / "w" / "code" / "pkg" / "a.py").read_text() == "one\n42\n"


def test_the_same_lock_everywhere(world: World) -> None:
    """Twice, and under another user's umask, time zone, locale and git configuration: the same bytes."""
    up = world.repo()
    lines = [f"line {n}" for n in range(30)]
    base = up.commit({"pkg/a.py": "\n".join(lines) + "\n", "pkg/crlf.txt": "a\r\nb\r\n", "pkg/ä ö.py": "é\n"})
    up.commit(
        {".gitattributes": "*.txt text eol=crlf\n* ident\n", "pkg/a.py": "\n".join([*lines, "ours"]) + "\n"}
    )
    pull(up, 1, {"pkg/a.py": "\n".join(["theirs", *lines]) + "\n"}, "Ein Übel $Id$", at=base)
    patch = PATCH.replace("-1,2 +1,2", "-1,3 +1,3").replace(
        " one\n-two\n+42", " theirs\n-line 0\n+line ü\n line 1"
    )
    world.write("x.patch", patch)
    world.manifest({"up": component(up, merge=[request(1)], patches=["./x.patch"], dist=DIST)})
    manifest = world.root / "project" / "m.yaml"
    ok(run_cli(["lock", "-m", manifest], world.env))
    first = (world.root / "project" / "m.lock.json").read_bytes()

    variables, marks = hostile_user(world.root / "hostile")
    store = str(world.root / "other-store")
    env = {**world.env, **variables, "NPU_RL_STORE": store, "PYTHONHASHSEED": "7"}
    locking = [sys.executable, "-m", "npu_rl", "lock", "-m", manifest, "-o", world.root / "again.json"]
    ok(run_program(["sh", "-c", 'umask 077; exec "$@"', "sh", *locking], env=env, cwd=world.root))
    assert (world.root / "again.json").read_bytes() == first
    assert not (marks / "ran").exists(), "a program of the user ran"
    lock = lock_model.read(world.root / "again.json")
    made = world.compose(lock)
    assert made.code["pkg/crlf.txt"] == b"a\r\nb\r\n"
    assert made.code["pkg/a.py"].startswith("theirs\nline ü\n".encode())
    assert os.fsdecode(b"pkg/\xc3\xa4 \xc3\xb6.py") in made.code


DIST = {
    "name": "up",
    "version": "1.0",
    "entry_points": {"b.group": {"z": "pkg.a:f", "a": "pkg.a:g"}, "a.group": {}},
}
