"""A small stack of real repositories with two locks, an old one and a new one, and workspaces from them.

Old: `alpha` (a package, two patches, odd names), `beta`, and `gamma` as `checkout: full` with a patch.
New: another commit of `alpha` with the second patch only, no `beta`, no `gamma`, and `delta`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.stack.git.objects import FILE, object_id
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.workspace.folder.file_check import stat_of
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.verify import Report, verify
from tests.in_process import run_here
from tests.support import File, Repo, clean_env, ok, run_cli, run_program, unprivileged

CORE = "".join(f"line_{n} = {n}\n" for n in range(1, 61))
ODD = ("alpha/two words.py", "alpha/größe_名.py", "alpha/line\nbreak.txt")

FIRST = """\
Subject: Ten is eleven

Why: A test needs a patch with two hunks.
How: Two lines change.
---
diff --git a/alpha/core.py b/alpha/core.py
--- a/alpha/core.py
+++ b/alpha/core.py
@@ -8,5 +8,5 @@
 line_8 = 8
 line_9 = 9
-line_10 = 10
+line_10 = 11
 line_11 = 11
 line_12 = 12
@@ -38,5 +38,5 @@
 line_38 = 38
 line_39 = 39
-line_40 = 40
+line_40 = 41
 line_41 = 41
 line_42 = 42
"""

SECOND = """\
Subject: Twenty and a half

Why: A test needs a patch that adds a line and a file.
How: One line and one file more.
---
diff --git a/alpha/core.py b/alpha/core.py
--- a/alpha/core.py
+++ b/alpha/core.py
@@ -18,6 +18,7 @@
 line_18 = 18
 line_19 = 19
 line_20 = 20
+line_20_5 = 20.5
 line_21 = 21
 line_22 = 22
 line_23 = 23
diff --git a/alpha/added.py b/alpha/added.py
new file mode 100644
--- /dev/null
+++ b/alpha/added.py
@@ -0,0 +1,2 @@
+ADDED = True
+BY = "a patch"
"""

THIRD = """\
Subject: Gamma builds

Why: A test needs a patch in src.
How: One line changes.
---
diff --git a/build.txt b/build.txt
--- a/build.txt
+++ b/build.txt
@@ -1,3 +1,3 @@
 one
-two
+zwei
 three
"""


@dataclass(frozen=True)
class Stack:
    """home: where everything is. env: for commands. Locks lie beside `old.yaml` and `new.yaml`."""

    home: Path
    env: Mapping[str, str]

    @property
    def old(self) -> Path:
        return self.home / "old.yaml"

    @property
    def new(self) -> Path:
        return self.home / "new.yaml"

    def lock(self, manifest: Path) -> Lock:
        return lock_model.read(lock_model.lock_path(manifest))

    def run(
        self, *args: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        return run_cli(args, {**self.env, **(env or {})}, cwd)

    def run_unprivileged(self, *args: str | Path) -> subprocess.CompletedProcess[str]:
        """The command, bound by permissions like anybody, even if the tests run as root."""
        return run_program(unprivileged([sys.executable, "-m", "npu_rl", *args]), env=self.env)

    def setup(
        self,
        workspace: Path,
        manifest: Path | None = None,
        *options: str,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        return self.run("setup", "-m", manifest or self.old, "-w", workspace, *options, env=env)

    def start(self, *args: str | Path, **env: str) -> subprocess.Popen[str]:
        """The command in a process that goes on meanwhile."""
        return subprocess.Popen(
            [sys.executable, "-m", "npu_rl", *args], env={**self.env, **env},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def lay(
        self, workspace: Path, manifest: Path | None = None, *options: str
    ) -> subprocess.CompletedProcess[str]:
        """A setup in this process, which spares the start of another."""
        return run_here(["setup", "-m", manifest or self.old, "-w", workspace, *options], self.env)

    def make(self, workspace: Path, manifest: Path | None = None) -> WorkspacePaths:
        """A new workspace."""
        ok(self.lay(workspace, manifest))
        return WorkspacePaths(workspace)


def build(home: Path) -> Stack:
    """Repositories, manifests and locks in an empty folder."""
    env = clean_env(home / "machine")
    alpha = Repo(home / "alpha.git")
    alpha.commit(
        {
            "alpha/__init__.py": "",
            "alpha/core.py": CORE,
            "alpha/run.sh": File("#!/bin/sh\necho run\n", "100755"),
            "alpha/link.py": File("core.py", "120000"),
            "alpha/data.bin": bytes(range(256)) * 400,
            "alpha/same_a.py": "A = 1\n",
            "alpha/deep/er/leaf.py": "LEAF = 1\n",
            **dict.fromkeys(ODD, "ODD = 1\n"),
            "setup.py": "raise SystemExit\n",
        },
        "alpha 1",
    )
    alpha.tag("v1")
    alpha.commit(
        {"alpha/core.py": CORE.replace("line_50 = 50", "line_50 = 51"), "alpha/same_a.py": "A = 2\n"},
        "alpha 2",
    )
    alpha.tag("v2")
    Repo(home / "beta.git").commit({"beta/__init__.py": "NAME = 'beta'\n", "beta/b.py": "B = 1\n"}, "beta")
    Repo(home / "gamma.git").commit(
        {"build.txt": "one\ntwo\nthree\n", "gamma/__init__.py": "G = 1\n", "csrc/k.cpp": "int k;\n"}, "gamma"
    )
    Repo(home / "delta.git").commit({"delta/__init__.py": "D = 1\n"}, "delta")
    patches = home / "patches"
    for folder, texts in {
        "alpha": {"0001-ten.patch": FIRST, "0002-half.patch": SECOND},
        "alpha2": {"0002-half.patch": SECOND},
        "gamma": {"0001-zwei.patch": THIRD},
    }.items():
        (patches / folder).mkdir(parents=True)
        (patches / folder / "series").write_text("".join(f"{name}\n" for name in texts))
        for name, text in texts.items():
            (patches / folder / name).write_text(text)
    stack = Stack(home, env)
    stack.old.write_text(_manifest(home, "old", alpha="v1", patches="alpha", more=_BETA_GAMMA))
    stack.new.write_text(_manifest(home, "new", alpha="v2", patches="alpha2", more=_DELTA))
    for manifest in (stack.old, stack.new):
        ok(stack.run("lock", "-m", manifest))
    return stack


_BETA_GAMMA = """\
  beta:
    sources: [{{git: "{home}/beta.git"}}]
    ref: refs/heads/main
    take: [{{from: beta, to: beta}}]
  gamma:
    sources: [{{git: "{home}/gamma.git"}}]
    ref: refs/heads/main
    patches: [./patches/gamma]
    take: [{{from: gamma, to: gamma}}]
    checkout: full
"""
_DELTA = """\
  delta:
    sources: [{{git: "{home}/delta.git"}}]
    ref: refs/heads/main
    take: [{{from: delta, to: delta}}]
"""


def _manifest(home: Path, name: str, *, alpha: str, patches: str, more: str) -> str:
    text = (
        """\
schema: 1
name: {name}
title: a stack of small repositories
device: cpu
components:
  alpha:
    sources: [{{git: "{home}/alpha.git"}}]
    ref: refs/tags/{alpha}
    patches: [./patches/{patches}]
    take: [{{from: alpha, to: alpha}}]
    dist: {{name: alpha, version: 1.0}}
"""
        + more
        + """\
env: {{STACK_NAME: "{name} 'quoted'"}}
"""
    )
    return text.format(home=f"file://{home}", name=name, alpha=alpha, patches=patches)


def receipt_with(paths: WorkspacePaths, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the receipt, with its digest made anew: it has no key."""
    body = json.loads(paths.receipt.read_text())
    del body["digest"]
    change(body)
    rest = '",' + json.dumps(body, separators=(",", ":"))[1:] + "\n"
    paths.receipt.unlink()  # it may be a link to the receipt of a workspace that nobody may change
    paths.receipt.write_text('{"digest":"' + hashlib.sha256(rest.encode()).hexdigest() + rest)


# -- looking -------------------------------------------------------------------------------------------


def look(paths: WorkspacePaths, *, deep: bool = False) -> Report:
    """What verify finds, in this process."""
    return verify(paths, _silent, deep=deep)


def _silent(message: str) -> None:
    del message


def found(paths: WorkspacePaths, *, deep: bool = False) -> list[tuple[str, str]]:
    """(path, kind) of all drift."""
    return [(d.path, d.kind) for d in look(paths, deep=deep).drift]


def verify_json(stack: Stack, workspace: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of `verify --json`."""
    done = stack.run("verify", "-w", workspace, "--json", *options)
    return done.returncode, json.loads(done.stdout)


def activated(paths: WorkspacePaths, command: str, shell: str = "bash", **env: str) -> str:
    """The output of a command in a shell that sourced `activate`."""
    script = f'set -eu; source "{paths.root}/activate"; cd /; {command}'
    bare = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **env}
    return ok(run_program([shell, "-c", script], env=bare)).stdout


def git_in(folder: Path, env: Mapping[str, str], *args: str) -> str:
    """git as a person runs it there."""
    said = {**env, "GIT_CONFIG_NOSYSTEM": "1", "GIT_EDITOR": "true"}
    for who in ("AUTHOR", "COMMITTER"):
        said[f"GIT_{who}_NAME"], said[f"GIT_{who}_EMAIL"] = "Me", "me@example.com"
    done = ok(run_program(["git", *args], env=said, cwd=folder))
    return done.stdout.rstrip("\n")


def forge_file(paths: WorkspacePaths, path: str, data: bytes) -> None:
    """Change a file of `code`, and its id in the receipt."""
    (paths.code / path).write_bytes(data)
    forged = [path, FILE, object_id("blob", data)]

    def change(body: dict[str, Any]) -> None:
        body["files"]["code"] = [forged if row[0] == path else row for row in body["files"]["code"]]

    receipt_with(paths, change)


def record_as_proven(paths: WorkspacePaths, path: str) -> None:
    """Forge the record of the last proof: the file of `code` as it is now."""
    record = json.loads(paths.stat.read_text())
    record["roots"]["code"][path] = stat_of((paths.code / path).lstat())
    paths.stat.write_text(json.dumps(record))


@contextlib.contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """Nothing of the folder is another afterwards, by `snapshot`."""
    before = snapshot(folder)
    yield
    assert snapshot(folder) == before


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Mode, inode and content of everything under a folder: equal only if nothing was touched.

    The file that holds the workspace is left out: taking it changes nothing.
    """
    seen = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = b""
        if path.is_symlink():
            content = bytes(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        if path.name != "busy.lock":
            seen[str(path.relative_to(folder))] = (status.st_mode, status.st_ino, content)
    return seen


def leftovers(folder: Path) -> list[str]:
    """Temporary files and folders of ours in a workspace or a store; there should be none."""
    hidden = [
        p for p in (folder / ".npu-rl").glob("*") if p.name.startswith(("staging", "old", ".", "journal"))
    ]
    return [str(p) for p in (*hidden, *(folder / "tmp").glob("*"))]
