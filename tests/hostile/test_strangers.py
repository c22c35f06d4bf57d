"""A file of somebody else, in every folder to which a command has written: no command removes or changes it.

Which folders those are is not known by heart: all that commands make lies below one root, which strace confirms, and
each folder there gets such files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.stage import Scene, build
from tests.support import ok, run_cli, run_program
from tests.tensors import megatron_checkpoints as tiny
from tests.weights.tiny_checkpoint import Maker, write_checkpoint

pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

Words = Sequence[str | Path]
NAMES = ("thesis.txt", "mine.part", ".mine.tmp", "mine.partial", "npu-rl-notes.json")
CALLS = (
    "open,openat,creat,truncate,rename,renameat,renameat2,mkdir,mkdirat,rmdir,unlink,unlinkat,link,linkat,symlink,"
    "symlinkat"
)
READING = re.compile(r"open(at)?\((?!.*O_(WRONLY|RDWR|CREAT))")
PATHS = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')
NOWHERE = re.compile(r"/(dev|proc|sys)/")


@dataclass(frozen=True)
class Life:
    """What commands write lies in `root`: home, temporary files, store, workspace, and what they are asked for."""

    scene: Scene
    root: Path

    @property
    def gc(self) -> Words:
        return "store", "gc", "--days", "0"

    def commands(self, manifest: str) -> Iterator[Words]:
        """Each command that writes, but for `gc`, in the order of work."""
        workspace = ("-w", self.scene.paths.root)
        python = ("--python", sys.executable, "--workers", "1")
        lock = self.scene.stage.manifest(manifest)
        rows, data = self.root / "g.jsonl", self.root / "data"
        prepare = ("data", "prepare", "gsm8k", "--input", rows, "--output", data)
        yield "lock", "-m", lock
        yield "setup", "-m", lock, *workspace, "--discard"
        for words in (("verify", "--deep"), ("status",), ("diff",), ("summary",), ("faults",)):
            yield *words, *workspace
        yield "patches", "export", "-m", lock, *workspace
        port = ("patches", "port", "one", "-m", lock, "--folder", self.root / "port")
        yield *port, "--to", "v1" if manifest == "new" else "v2", "--output", self.root / "ported"
        yield "recipes", "copy", "quickstart", self.root / "recipes"
        yield prepare
        yield *prepare, "--overwrite"
        yield "weights", "cast", self.root / "fp8", self.root / "bf16", *python
        yield "weights", "convert", self.root / "hf", self.root / "dist", "--format", "torch_dist", *python
        yield "weights", "audit", self.root / "hf", self.root / "dist", *python

    def run(self, words: Words) -> subprocess.CompletedProcess[str]:
        return run_cli(words, self.scene.env, self.root, timeout=300)

    def traced(self, words: Words) -> set[Path]:
        """Run a command that has to succeed; the folders in which it, or a process of its, has changed a name."""
        log = self.root / "strace"
        strace = ["strace", "-f", "-qq", "-y", "-s", "4096", "-e", f"trace={CALLS}", "-e", "signal=none"]
        ok(
            run_program(
                [*strace, "-o", log, sys.executable, "-m", "npu_rl", *map(str, words)],
                env=self.scene.env,
                cwd=self.root,
            )
        )
        changed = set()
        for line in log.read_text(errors="replace").splitlines():
            call = line.split(maxsplit=1)[1]
            if not READING.match(call) and " = -1 " not in call:
                for folder, name in PATHS.findall(call):
                    path = Path(os.path.normpath(self.root / folder / name))
                    changed.add(
                        path if "O_TMPFILE" in call else path.parent
                    )  # without a name, in that folder
        log.unlink()
        own = {folder for folder in changed if self.root in (folder, *folder.parents)}  # maybe in /dev/shm
        return own | {folder for folder in changed if not NOWHERE.match(f"{folder}/")}


@dataclass(frozen=True)
class Written:
    """A life in which each command has run once, and the folders in which it has changed a name, by its words."""

    life: Life
    folders: dict[Words, set[Path]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    life = begun(tmp_path_factory.mktemp("life"))
    folders = {words: traced_or_run(life, words) for words in life.commands("new")}
    return Written(life, folders)


def traced_or_run(life: Life, words: Words) -> set[Path]:
    if shutil.which("strace"):
        return life.traced(words)
    ok(life.run(words))
    return set()


def begun(tmp_path: Path) -> Life:
    scene = Scene(build(tmp_path / "stage"), tmp_path / "scene")
    scene.reset(old=True)
    rows = ({"question": f"q{i}", "answer": f"#### {i}"} for i in range(20))
    (tmp_path / "g.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "recipes").mkdir()
    tensors = Maker(1).weight("model.layers.0.mlp.experts.1.up_proj.weight", 128, 200)
    write_checkpoint(tmp_path / "fp8", {"model-00001-of-00001.safetensors": tensors})
    tiny.write_hf(tmp_path / "hf", tiny.DEEPSEEK, tiny.hf_tensors(tiny.DEEPSEEK))
    return Life(scene, tmp_path)


def plant(root: Path) -> dict[Path, str]:
    """A stranger's files in each folder below; path and content."""
    planted = {}
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())]:
        for path in (folder / name for name in NAMES):
            planted[path] = f"written by a person: {path}"
            path.write_text(planted[path])
    return planted


def require_untouched(planted: dict[Path, str], life: Life, after: Words) -> None:
    """Each file is where it was, or was put aside by a command that was told to: --discard, --overwrite."""
    places = (life.scene.paths.kept, *life.root.glob("data.old-*"))
    files = (path for place in places for path in place.rglob("*") if path.is_file() and path.name in NAMES)
    aside = {path.read_text() for path in files}
    gone = [path for path, text in planted.items() if not path.is_file() or path.read_text() != text]
    assert [path for path in gone if planted[path] not in aside] == [], after


def test_no_command_removes_or_changes_a_strangers_file(written: Written) -> None:
    life = written.life
    planted = plant(life.root)
    written.folders[life.gc] = traced_or_run(life, life.gc)
    require_untouched(planted, life, life.gc)
    for words in (*life.commands("old"), life.gc):
        done = life.run(words)
        assert "bug in npu-rl" not in done.stderr
        require_untouched(planted, life, words)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_every_command_writes_only_below_its_folders(written: Written) -> None:
    life = written.life
    if life.gc not in written.folders:  # this test alone
        written.folders[life.gc] = life.traced(life.gc)
    for words, folders in written.folders.items():
        assert {folder for folder in folders if life.root not in (folder, *folder.parents)} == set(), words
    made = {life.scene.store / "tmp", life.scene.paths.hidden, life.root / "bf16", life.root / "dist"}
    assert made <= set().union(*written.folders.values())
