"""What every fault test starts from: two locks over tiny repositories, and folders that can be put back."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.workspace.folder import swap
from npu_rl.workspace.folder.receipt import read_receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.support import Repo, assert_told, clean_env, command_server, git, ok, run_cli
from tests.workspace.stack import snapshot

PATCH = """\
Subject: Two is three

Why: A test needs a patch.
How: One line changes.
---
diff --git a/one/core.py b/one/core.py
--- a/one/core.py
+++ b/one/core.py
@@ -1,3 +1,3 @@
 A = 1
-B = 2
+B = 3
 C = 3
"""


@dataclass(frozen=True)
class Stage:
    """home: repositories and manifests. env: for commands. before: a store and a workspace of the old lock."""

    home: Path
    env: Mapping[str, str]

    @property
    def before(self) -> Path:
        return self.home / "before"

    def manifest(self, name: str) -> Path:
        return self.home / f"{name}.yaml"

    def lock(self, name: str) -> Lock:
        return lock_model.read(lock_model.lock_path(self.manifest(name)))


@dataclass(frozen=True)
class Scene:
    """A store and a workspace of a test's own, in `folder`."""

    stage: Stage
    folder: Path

    @property
    def paths(self) -> WorkspacePaths:
        return WorkspacePaths(self.folder / "w")

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def env(self) -> dict[str, str]:
        return {**self.stage.env, "NPU_RL_STORE": str(self.store)}

    def reset(self, *, old: bool) -> None:
        """Nothing at all, or the workspace of the old lock with a store that has what it needed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if old:
            shutil.copytree(self.stage.before, self.folder, symlinks=True)
        else:
            self.folder.mkdir()

    def arguments(self, name: str, *options: str) -> list[str]:
        return ["setup", "-m", str(self.stage.manifest(name)), "-w", str(self.paths.root), *options]

    def setup(self, name: str, *options: str) -> subprocess.CompletedProcess[str]:
        return run_cli(self.arguments(name, *options), self.env)

    def killed_at(self, number: int, name: str, *options: str) -> tuple[bool, list[str]]:
        """Run a setup that dies before its change with this number; whether it did, and what it had begun."""
        log = self.folder / "events.log"
        first = ["tests.faults.killer:watch", number, str(log)]
        done = command_server().run(self.arguments(name, *options), self.env, "/", 120, first)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        events = log.read_text().splitlines()
        log.unlink()
        return done.returncode != 0, events

    def killed_after(self, seconds: float, name: str, *options: str) -> bool:
        """Run a setup and kill it with every process below it after a time; whether it was still running."""
        try:
            command_server().run(self.arguments(name, *options), self.env, "/", seconds, kill=kill_family)
            return False
        except subprocess.TimeoutExpired:
            return True

    def finish(self) -> None:
        """If a setup was killed in the middle of its swap: a command that looks says so, and how to go on."""
        if not self.paths.is_swapping:
            return
        before = snapshot(self.paths.root)
        told = run_cli(["verify", "-w", self.paths.root], self.env)
        assert_told(told, "was interrupted", code=3)
        assert snapshot(self.paths.root) == before
        hint = told.stderr.rpartition("Finish it: npu-rl ")[2].splitlines()[0]
        words = [self._interrupted_manifest() if word == "NAME" else word for word in shlex.split(hint)]
        done = ok(run_cli(words, self.env))
        assert "Finished an interrupted setup." in done.stderr

    def _interrupted_manifest(self) -> str:
        """The manifest of the setup that was killed, which its user knows."""
        journal = swap.read_journal(self.paths)
        assert journal is not None
        staged = WorkspacePaths(journal.staging)
        return str(read_receipt(staged if staged.receipt.is_file() else self.paths).setup["manifest"])

    def check(self, *names: str) -> None:
        """There is a whole workspace of one of these locks, perhaps once its setup is finished, or none yet."""
        paths = self.paths
        self.finish()
        if not paths.is_workspace:
            assert "none" in names
            assert not [n for n in ("code", "src", "activate") if os.path.lexists(paths.root / n)]
            return
        done = ok(run_cli(["verify", "--deep", "--json", "-w", str(paths.root)], self.env))
        document = json.loads(done.stdout)
        assert document["lock"]["commit"] in [
            self.stage.lock(name).commit for name in names if name != "none"
        ]

    def check_again(self, name: str, *options: str, whole: bool = True) -> None:
        """The same setup once more gives what the lock says and leaves nothing behind.

        whole: False if it may have found nothing to do, and so had no business in the store.
        """
        done = ok(self.setup(name, "--json", *options))
        document = json.loads(done.stdout)
        lock = self.stage.lock(name)
        assert (document["lock"]["tree"], document["lock"]["commit"]) == (lock.tree, lock.commit)
        self.check(name)
        assert self.leftovers(whole=whole) == []
        head = git("rev-parse", "HEAD", "HEAD^{tree}", git_dir=self.paths.git / "code").split()
        assert head == [lock.commit, lock.tree]

    def leftovers(self, *, whole: bool = True) -> list[str]:
        """Everything that is there and should not be. whole: look into the store too."""
        allowed = {"git", "lock.json", "receipt.json", "stat.json", "pycache", "busy.lock", "kept"}
        hidden = [p for p in self.paths.hidden.iterdir() if p.name not in allowed]
        outside = [
            p for p in self.paths.root.iterdir() if p.name not in {"code", "src", "activate", ".npu-rl"}
        ]
        git_locks = [p for p in self.paths.git.rglob("*") if p.name.endswith(".lock") or "tmp_" in p.name]
        store = [*(self.store / "tmp").iterdir(), *self.store.rglob("tmp_*"), *self.store.rglob(".*")]
        temporary = list(Path(self.env["TMPDIR"]).iterdir())
        return [str(p) for p in (*hidden, *outside, *git_locks, *temporary, *(store if whole else ()))]


def kill_family(pid: int) -> None:
    """Kill a process and all it has started, those in sessions of their own too."""
    try:
        os.kill(pid, signal.SIGSTOP)
    except ProcessLookupError:  # it has ended since its time was up
        return
    family = [pid]
    for parent in family:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                family.append(int(stat.parent.name))
    for member in family:
        try:
            os.kill(member, signal.SIGKILL)
        except ProcessLookupError:
            continue


def build(home: Path) -> Stage:
    """Repositories, manifests, locks, and the state of `before`."""
    env = clean_env(home / "machine")
    one = Repo(home / "one.git")
    one.commit(
        {"one/__init__.py": "", "one/core.py": "A = 1\nB = 2\nC = 3\n", "one/more.py": "M = 1\n"}, "one 1"
    )
    one.tag("v1")
    one.commit({"one/more.py": "M = 2\n", "one/new.py": "N = 1\n"}, "one 2")
    one.tag("v2")
    Repo(home / "two.git").commit({"two/__init__.py": "", "two/build.txt": "x\n"}, "two")
    Repo(home / "three.git").commit({"three/__init__.py": ""}, "three")
    (home / "patches").mkdir()
    (home / "patches/series").write_text("0001-two-is-three.patch\n")
    (home / "patches/0001-two-is-three.patch").write_text(PATCH)
    stage = Stage(home, env)
    for name, tag, other, extra in (("old", "v1", "two", "    checkout: full\n"), ("new", "v2", "three", "")):
        stage.manifest(name).write_text(
            f"schema: 1\nname: {name}\ntitle: {name}\ndevice: cpu\ncomponents:\n"
            f"  one:\n    sources: [{{git: '{one.url}'}}]\n    ref: refs/tags/{tag}\n"
            "    patches: [./patches]\n    take: [{from: one, to: one}]\n    dist: {name: one, version: 1.0}\n"
            f"  {other}:\n    sources: [{{git: 'file://{home}/{other}.git'}}]\n    ref: refs/heads/main\n"
            f"    take: [{{from: {other}, to: {other}}}]\n{extra}"
        )
        ok(run_cli(["lock", "-m", stage.manifest(name)], env))
    scene = Scene(stage, stage.before)
    scene.reset(old=False)
    ok(scene.setup("old"))
    return stage


def timed(scene: Scene, name: str, *options: str) -> float:
    """Seconds a setup takes here when nobody disturbs it."""
    started = time.monotonic()
    ok(scene.setup(name, *options))
    return time.monotonic() - started
