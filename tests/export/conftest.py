"""A stack that a test may change: two components, one of them moved by `take`, with patches beside the manifest."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

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
THIRTY = TEN.replace("Ten is X", "Thirty").replace("-8,5 +8,5", "-28,5 +28,5").replace("line 10", "line 30")
for number in (8, 9, 11, 12):
    THIRTY = THIRTY.replace(f" line {number}\n", f" line {number + 20}\n")
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

    manifest_name: str = "m"

    @property
    def manifest(self) -> Path:
        return self.root / f"project/{self.manifest_name}.yaml"

    def child(self) -> Export:
        """The same workspace, with a manifest that extends its own."""
        made = replace(self, manifest_name="child")
        made.manifest.write_text("schema: 1\nname: child\ntitle: mine\nextends: ./m.yaml\n")
        return made

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

    def do(self, script: str) -> None:
        """What a person does in `code`, in a shell."""
        self.git("-c", f"alias.work=!set -eu; unset GIT_DIR GIT_PREFIX; {script}; :", "work")

    def round_trip(self) -> dict[str, bytes]:
        """Export, and again without a change; lock and set up, which gives the same tree. Returns what was written."""
        tree = self.tree()
        self.enter(self.states()["lines"])
        before = self.beside()
        assert self.states()["lines"] == ""
        assert self.beside() == before
        self.lay()
        assert self.tree() == tree
        ok(self.run("verify", "-w", self.workspace))
        assert "nothing to write" in ok(self.export()).stdout
        return before

    def states(self) -> dict[str, Any]:
        """An export as JSON, with the state of each patch by its path."""
        body: dict[str, Any] = json.loads(ok(self.export("--json")).stdout)
        return {**body, **{row["path"]: row["state"] for row in body["patches"]}}

    def enter(self, lines: str) -> None:
        """Put the printed lines into the manifest, as a person does."""
        written, added = yaml.safe_load(self.manifest.read_text()), yaml.safe_load(lines) or {}
        for name, component in added.get("components", {}).items():
            written.setdefault("components", {}).setdefault(name, {}).update(component)
        self.manifest.write_text(
            yaml.safe_dump({**written, **added, "components": written.get("components", {})})
        )

    def files(self, folder: str = "up") -> list[str]:
        """The names in a patch folder."""
        return sorted(path.name for path in (self.patches / folder).iterdir())

    def fix_up(self, patch: str, **files: str) -> None:
        """Change files in the commit of a patch, as a person does; `__` stands for a slash in their names."""
        at = self.git("log", "--format=%H", "--grep", f"Apply {patch}")
        for path, text in files.items():
            self.write(path.replace("__", "/").replace("_py", ".py"), text)
        self.git("add", "-A")
        self.git("commit", "-q", "--fixup", at)
        self.git("-c", "sequence.editor=:", "rebase", "-qi", "--autosquash", f"{at}^")

    def drop(self, patch: str) -> None:
        """Drop the commit of a patch, as `git rebase -i` does."""
        at = self.git("log", "--format=%H", "--grep", f"Apply {patch}")
        self.git("rebase", "-q", "--onto", f"{at}^", at)

    def relay(self, entry: str) -> None:
        """Replace the list of patches of `up`, and lay the stack again."""
        self.manifest.write_text(self.manifest.read_text().replace("[./patches/up]", f"[{entry}]"))
        self.lay()

    def lay(self) -> None:
        ok(self.run("lock", "-m", self.manifest))
        ok(self.run("setup", "-m", self.manifest, "-w", self.workspace))

    def export(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.run("patches", "export", "-m", self.manifest, "-w", self.workspace, *options)

    def write(self, path: str, text: str) -> None:
        place = self.code / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def commit(self, message: str, path: str = "lib/same.py", text: str | None = None) -> None:
        if text is not None:
            self.write(path, text)
        self.git("add", "-A")
        self.git("commit", "-qm", message)

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


@pytest.fixture
def two(tmp_path: Path) -> Export:
    """A stack with two patches in ./patches/up."""
    return build(tmp_path, {"0001-ten.patch": TEN, "0002-thirty.patch": THIRTY})
