"""`npu-rl summary` of a workspace and of a manifest: each patch and pull request, in Python's terms."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.in_process import run_here
from tests.resolve.world import World, component, takes, world
from tests.support import assert_told, ok

__all__ = ["world"]

BEFORE = """\
import os
class Worker:
    def run(self, n):
        return n
"""
PATCH = """\
Subject: Count what runs

Why: nobody knows
 how much it is.
---
diff --git a/pkg/a.py b/pkg/a.py
--- a/pkg/a.py
+++ b/pkg/a.py
@@ -1,4 +1,6 @@
 import os
+import sys
 class Worker:
-    def run(self, n):
-        return n
+    def run(self, n, m=0):
+        sys.count += n + m
+        return n
diff --git a/pkg/notes.txt b/pkg/notes.txt
new file mode 100644
--- /dev/null
+++ b/pkg/notes.txt
@@ -0,0 +1 @@
+one
"""
TREE_PATCH = """\
diff --git a/lib/a.py b/lib/a.py
--- a/lib/a.py
+++ b/lib/a.py
@@ -1,2 +1,2 @@
-import os
+import os  # for later
 import sys
"""


@pytest.fixture
def stack(world: World) -> World:
    """A locked manifest of `up`, laid into lib/, with a pull request, a patch and a patch of the tree."""
    up = world.repo()
    base = up.commit({"pkg/a.py": BEFORE, "pkg/old.py": "x = 1\n", "pkg/bad.py": "print 1\n"})
    up.commit(
        {"pkg/old.py": None, "pkg/bad.py": "print 2\n"}, "Drop old", on="refs/pull/1/head", parents=[base]
    )
    world.write("count.patch", PATCH)
    world.write("later.patch", TREE_PATCH)
    entry = component(up, base, take=takes(("pkg", "lib")))
    entry["merge"] = [{"ref": "refs/pull/1/head", "base": "refs/heads/main", "how": "pick"}]
    entry["patches"] = ["./count.patch"]
    world.manifest({"up": entry}, tree={"patches": ["./later.patch"]})
    ok(run(world, "lock", "-m", "project/m.yaml"))
    return world


def run(world: World, *args: str) -> subprocess.CompletedProcess[str]:
    return run_here(args, world.env, world.root)


EXPECTED = """\
up: pick refs/pull/1/head
  1 commit up to HEAD
  commit HEAD Drop old
  changed pkg/bad.py (at lib/bad.py): +1 -1 lines, can't be parsed as Python
  removed pkg/old.py (at lib/old.py): +0 -1 lines
    removed  module attribute x: 1  :1
up: patch count
  Count what runs
  Why: nobody knows how much it is.
  changed pkg/a.py (at lib/a.py): +3 -1 lines
    added    import sys: import sys  :2
    replaced method Worker.run: signature (self, n) -> (self, n, m=0); body  :4
  added pkg/notes.txt (at lib/notes.txt): +1 -0 lines
code tree: tree patch later
  changed lib/a.py: +1 -1 lines, comments and layout only
"""


def test_of_a_manifest_and_of_its_workspace(stack: World) -> None:
    told = ok(run(stack, "summary", "-m", "project/m.yaml"))
    head = next(line.split()[-1] for line in told.stdout.splitlines() if "commit up to" in line)
    assert told.stdout == EXPECTED.replace("HEAD", head)
    assert not (stack.root / "npu-rl-workspace").exists()

    assert run(stack, "setup", "-m", "project/m.yaml", "-w", "w").returncode == 0
    assert run(stack, "summary", "-w", "w").stdout == told.stdout
    shutil.rmtree(stack.root / "store", ignore_errors=True)  # the workspace has what it needs
    moved = (stack.root / "w").rename(stack.root / "elsewhere")
    assert run(stack, "summary", "-w", str(moved)).stdout == told.stdout


def test_json_has_the_same(stack: World) -> None:
    found: dict[str, Any] = json.loads(run(stack, "summary", "-m", "project/m.yaml", "--json").stdout)
    assert [
        (one["step"]["how"], one["step"]["component"], one["step"]["name"]) for one in found["steps"]
    ] == [
        ("pick", "up", "refs/pull/1/head"),
        ("patch", "up", "count"),
        ("tree patch", None, "later"),
    ]
    (changed, added) = found["steps"][1]["files"]
    assert (changed["path"], changed["state"]) == ("pkg/a.py", "changed")
    assert found["steps"][1]["paths"]["pkg/a.py"] == ["lib/a.py"]
    assert [(one["change"], one["kind"], one["name"], one["line"]) for one in changed["definitions"]] == [
        ("added", "import", "sys", 2),
        ("replaced", "method", "Worker.run", 4),
    ]
    assert (added["definitions"], added["note"]) == (None, "+1 -0 lines")
    assert found["steps"][1]["step"]["why"] == "nobody knows how much it is."


def test_a_workspace_without_git_objects_says_so(stack: World) -> None:
    assert run(stack, "setup", "-m", "project/m.yaml", "-w", "w").returncode == 0
    shutil.rmtree(stack.root / "w/.npu-rl/git")
    assert_told(run(stack, "summary", "-w", "w"), "no git objects", code=3)


@pytest.mark.pypi
def test_the_quickstarts(quickstart_workspace: Path, tmp_path: Path, world: World) -> None:
    told = run(world, "summary", "-w", str(quickstart_workspace))
    assert "    replaced method HFRollout._generate_minibatch: body  :55" in told.stdout.splitlines()
