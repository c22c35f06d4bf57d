"""A file of somebody else, in every folder to which a command has written: no command removes or changes it.

Which folders those are is not known by heart: all that commands make lies below one root, and each folder there gets
such files.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.stage import Scene, build
from tests.support import ok, run_cli
from tests.tensors import megatron_checkpoints as tiny
from tests.weights.tiny_checkpoint import Maker, write_checkpoint

pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

Words = Sequence[str | Path]
NAMES = ("thesis.txt", "mine.part", ".mine.tmp", "mine.partial", "npu-rl-notes.json")


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


def test_no_command_removes_or_changes_a_strangers_file(tmp_path: Path) -> None:
    life = begun(tmp_path)
    for words in life.commands("new"):
        ok(life.run(words))
    planted = plant(life.root)
    for words in (life.gc, *life.commands("old"), life.gc):
        done = life.run(words)
        assert "bug in npu-rl" not in done.stderr
        require_untouched(planted, life, words)
