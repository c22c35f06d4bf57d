"""kill -9 of what removes, replaces or resumes: the old is whole or the new is, and the next command completes it.

`store gc`, `data prepare --overwrite`, `weights cast`, `convert` and `export`; two of three kills before a change of
the disk, evenly spread, the third at a random moment and of all processes at once. NPU_RL_FAULTS=500 makes it 500
kills.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from npu_rl.training.record.run_record import RunRecord
from tests.faults.stage import Scene, Stage, run_killed_after, run_killed_at
from tests.support import run_cli
from tests.tensors import megatron_checkpoints as tiny
from tests.weights.tiny_checkpoint import Maker, read_file, write_checkpoint

pytestmark = [pytest.mark.rehearsal, pytest.mark.nightly]
KILLS = max(2, int(os.environ.get("NPU_RL_FAULTS") or 10) // 5)  # of each command
COMMANDS = ("gc", "prepare", "cast", "convert", "export")
_FACTS = {"recipe": "r1", "manifest": "quickstart", "tree": "a" * 40, "commit": "b" * 40}
_LOCK = b'{"lock_format": 1, "digest": "%s"}' % (b"c" * 64)
_VARYING = (".jsonl", "npu-rl-export.json", "README.md")  # they have the time, or how long it took


@dataclass(frozen=True)
class Command:
    """A command over a folder of its own.

    Attributes:
        begin: Puts everything as it is before.
        check: Asserts what has to hold after a kill.
        whole: Asserts what has to hold after the command has run to its end.
        learn: Takes what a first run, which nothing disturbs, has made for what `check` and `whole` expect.
    """

    arguments: list[str]
    begin: Callable[[], None]
    check: Callable[[], None]
    whole: Callable[[], None]
    learn: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Counted:
    """A command, and how many changes it makes."""

    command: Command
    changes: int
    env: dict[str, str]

    @cached_property
    def seconds(self) -> float:
        """How long it takes."""
        self.command.begin()
        started = time.monotonic()
        assert run_cli(self.command.arguments, self.env).returncode == 0
        return time.monotonic() - started


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(_content(path)).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(_VARYING)
    }


def _content(path: Path) -> bytes:
    """Without the metadata of an exported shard, which has the time."""
    return repr(read_file(path)).encode() if path.suffix == ".safetensors" else path.read_bytes()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("commands")


def gc(stage: Stage, home: Path) -> Command:
    scene = Scene(stage, home / "gc")

    def whole() -> None:
        assert not [path for path in (scene.store / "units").iterdir() if path.suffix != ".lock"]
        assert not list((scene.store / "tmp").iterdir())
        scene.check("old")
        scene.check_again("new")

    return Command(
        ["store", "gc", "--days", "0"], lambda: scene.reset(old=True), lambda: scene.check("old"), whole
    )


def prepare(stage: Stage, home: Path) -> Command:
    pytest.importorskip("pyarrow")
    folder, kept = home / "prepare", home / "prepared"
    out = folder / "out"
    states = {}
    for name in ("old", "new"):
        rows = [{"question": f"{name} {n}?", "answer": f"It is #### {n}"} for n in range(200)]
        place = home / f"{name}.jsonl"
        place.write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = ["data", "prepare", "gsm8k", "--input", str(place), "--output", str(kept / name)]
        assert run_cli(words, stage.env).returncode == 0
        states[name] = contents(kept / name)
    rows_and_out = ("--input", str(home / "new.jsonl"), "--output", str(out))
    arguments = ["data", "prepare", "gsm8k", *rows_and_out, "--overwrite"]

    def begin() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(kept / "old", out)

    def check() -> None:
        place = out if out.exists() else folder / "out.old-1"
        assert contents(place) in states.values()

    def whole() -> None:
        assert contents(out) == states["new"] and contents(folder / "out.old-1") == states["old"]
        assert names(folder)[0] == "out", "nothing is hidden"

    return Command(arguments, begin, check, whole)


def weights(stage: Stage, home: Path, name: str, source: Path, *words: str) -> Command:
    """A command that makes a folder of a checkpoint, which it does not change."""
    out, before = home / name / "out", contents(source)
    arguments = ["weights", name, str(source), str(out), *words, "--workers", "1"]
    expected: dict[str, str] = {}

    def begin() -> None:
        shutil.rmtree(out.parent, ignore_errors=True)
        out.parent.mkdir()

    def learn() -> None:
        expected.update(contents(out))
        assert expected

    def check() -> None:
        assert contents(source) == before
        index = "model.safetensors.index.json" if name != "convert" else ".metadata"
        if (out / index).exists():  # no reader takes an unfinished one for a checkpoint
            assert expected.items() <= contents(out).items()

    def whole() -> None:
        assert contents(out) == expected and names(out.parent) == ["out"]
        assert contents(source) == before

    return Command(arguments, begin, check, whole, learn)


def cast(stage: Stage, home: Path) -> Command:
    make = Maker()
    shards = {
        f"model-{i:05}-of-00004.safetensors": make.weight(
            f"model.layers.0.mlp.experts.{i}.up_proj.weight", 256, 512
        )
        for i in range(1, 5)
    }
    return weights(stage, home, "cast", write_checkpoint(home / "fp8", shards))


def convert(stage: Stage, home: Path) -> Command:
    source = tiny.write_hf(home / "hf", tiny.QWEN, tiny.hf_tensors(tiny.QWEN))
    return weights(stage, home, "convert", source, "--format", "torch_dist")


def export(stage: Stage, home: Path) -> Command:
    import torch

    record = RunRecord.create(home / "runs", "first", _FACTS, lock=_LOCK)
    actor = record.checkpoints / "global_step_4" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    (actor / "huggingface/config.json").write_text(json.dumps({**tiny.QWEN, "torch_dtype": "bfloat16"}))
    (record.checkpoints / "latest_checkpointed_iteration.txt").write_text("4")
    torch.save(tiny.hf_tensors(tiny.QWEN), actor / "model_world_size_1_rank_0.pt")
    (actor / "fsdp_config.json").write_text('{"FSDP_version": 1, "world_size": 1}')
    return weights(stage, home, "export", record.folder)


@pytest.fixture(scope="session")
def counted(stage: Stage, home: Path) -> Callable[[str], Counted]:
    known: dict[str, Counted] = {}

    def find(name: str) -> Counted:
        if name not in known:
            if name not in ("gc", "prepare"):
                pytest.importorskip("torch")
            make = {"gc": gc, "prepare": prepare, "cast": cast, "convert": convert, "export": export}[name]
            command, env = make(stage, home), env_of(stage, home, name)
            command.begin()
            killed, events = run_killed_at(0, command.arguments, env, home / "log")
            assert not killed
            command.learn()
            command.whole()
            known[name] = Counted(command, len(events), env)
        return known[name]

    return find


def env_of(stage: Stage, home: Path, name: str) -> dict[str, str]:
    return {**stage.env, "NPU_RL_STORE": str(home / name / "store")} if name == "gc" else dict(stage.env)


@pytest.mark.parametrize("number", range(KILLS))
@pytest.mark.parametrize("name", COMMANDS)
def test_killed(name: str, number: int, home: Path, counted: Callable[[str], Counted]) -> None:
    of = counted(name)
    command, env = of.command, of.env
    moment = random.Random(f"{name}/{number}").uniform(0.1, of.seconds) if number % 3 == 2 else 0.0
    command.begin()
    if moment:
        run_killed_after(moment, command.arguments, env)
    else:
        at = 1 + number * of.changes // KILLS
        killed, events = run_killed_at(at, command.arguments, env, home / "log")
        assert killed or len(events) < at
    command.check()
    again = run_cli(command.arguments, env)
    if name == "export" and "The output folder exists" in again.stderr:
        assert again.returncode == 2  # it was put in place before the kill: whole, as the next line wants
    else:
        assert again.returncode == 0, again.stderr
    command.whole()
