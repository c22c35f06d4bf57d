"""A stack that a test may change: two components, one of them moved by `take`, with patches beside the manifest."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.in_process import run_here
from tests.support import Repo, clean_env, ok
from tests.workspace.stack import git_in

LINES = "".join(f"line {n}\n" for n in range(1, 41))
TEN = """\
Subject: Ten is X

Why: the header of a patch stays when its hunks change.
---
diff --git a/pkg/core.py b/pkg/core.py
--- a/pkg/core.py
+++ b/pkg/core.py
@@ -8,5 +8,5 @@
 line 8
 line 9
-line 10
+line X
 line 11
 line 12
"""
MANIFEST = """\
# The stack of these tests.
schema: 1
name: m
title: two components   # one is moved
device: cpu
runtime: false
components:
  up:
    sources: [{{git: "{up}"}}]
    ref: refs/heads/main
    take:
      - {{from: pkg, to: lib}}    # as in verl-npu's layout
      - {{from: top.py, to: top.py}}
  # The second one.
  other:
    sources: [{{git: "{other}"}}]
    ref: refs/heads/main
    take: [{{from: other, to: other}}]
"""


@dataclass
class Export:
    """root: where everything is. `manifest` lies in its own folder, the workspace in `w`."""

    root: Path
    env: dict[str, str]

    @property
    def manifest(self) -> Path:
        return self.root / "project/m.yaml"

    @property
    def workspace(self) -> Path:
        return self.root / "w"

    @property
    def code(self) -> Path:
        return self.workspace / "code"

    @property
    def patches(self) -> Path:
        return self.root / "project/patches"

    def run(self, *args: str | Path) -> subprocess.CompletedProcess[str]:
        return run_here(args, self.env, self.root)

    def git(self, *args: str) -> str:
        return git_in(self.code, self.env, *args)

    def round_trip(self) -> dict[str, bytes]:
        """Export, and again without a change; lock and set up, which gives the same tree. Returns what was written."""
        tree = self.tree()
        ok(self.export())
        before = self.beside()
        ok(self.export())
        assert self.beside() == before
        self.lay()
        assert self.tree() == tree
        return before

    def lay(self) -> None:
        ok(self.run("lock", "-m", self.manifest))
        ok(self.run("setup", "-m", self.manifest, "-w", self.workspace))

    def export(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.run("patches", "export", "-m", self.manifest, "-w", self.workspace, *options)

    def write(self, path: str, text: str) -> None:
        place = self.code / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def commit(self, message: str, **files: str) -> str:
        """A commit of everything, with files changed before; `__` stands for a slash in their names."""
        self.git("add", "-A")
        self.git("commit", "-qm", message)
        return self.git("rev-parse", "HEAD")

    def tree(self) -> str:
        return self.git("rev-parse", "HEAD^{tree}")

    def beside(self) -> dict[str, bytes]:
        """Every file beside the manifest."""
        folder = self.manifest.parent
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def build(root: Path, patches: dict[str, str] | None = None) -> Export:
    """Upstreams, a manifest and its workspace. patches: of `up`, by name, in ./patches/up."""
    env = clean_env(root / "machine")
    env["XDG_STATE_HOME"] = str(root / "state")
    up, other = Repo(root / "up.git"), Repo(root / "other.git")
    up.commit({"pkg/core.py": LINES, "pkg/__init__.py": "", "pkg/same.py": "S = 1\n", "top.py": "T = 1\n"})
    other.commit({"other/__init__.py": "O = 1\n", "other/deep/leaf.py": LINES})
    made = Export(root, env)
    made.manifest.parent.mkdir()
    text = MANIFEST.format(up=up.url, other=other.url)
    if patches:
        (made.patches / "up").mkdir(parents=True)
        (made.patches / "up/series").write_text("# In order.\n" + "".join(f"{name}\n" for name in patches))
        for name, content in patches.items():
            (made.patches / "up" / name).write_text(content)
        text = text.replace("    take:\n", "    patches: [./patches/up]\n    take:\n")
    made.manifest.write_text(text)
    made.lay()
    return made


@pytest.fixture
def plain(tmp_path: Path) -> Export:
    """A stack without patches."""
    return build(tmp_path)


@pytest.fixture
def patched(tmp_path: Path) -> Export:
    """A stack with one patch, ./patches/up/0001-ten.patch."""
    return build(tmp_path, {"0001-ten.patch": TEN})
