"""Nothing that comes from outside steers a terminal, or passes for a line of npu-rl's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from npu_rl.common.errors import NpuRlError
from tests.hostile.test_bounds import seal
from tests.resolve.world import World, component
from tests.support import File, assert_told, ok, run_cli

ESCAPES = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202etxt\u2066\x7f\r"
LINE = "\nnothing equals its lock: 0 files\nnpu-rl: "
EVIL = f"e{ESCAPES}{LINE}e".replace("/", "")
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def assert_tame(text: str) -> None:
    found = RAW.search(text)
    assert found is None, (found, text[max(0, found.start() - 80) : found.end() + 20])
    forged = [line for line in text.splitlines() if line.startswith("nothing equals")]
    assert not forged, text


def run_tame(words: Sequence[str | Path], world: World, cwd: Path | None = None) -> CompletedProcess[str]:
    """A command whose output is tame, and not a traceback."""
    done = run_cli(words, world.env, cwd)
    assert "Traceback" not in done.stderr, (words, done.stderr)
    assert_tame(done.stderr)
    if words[0] != "diff":  # a patch is bytes
        assert_tame(done.stdout)
    return done


def test_the_text_of_an_error_is_tame() -> None:
    why = f"{ESCAPES} of\ntwo lines"
    text = str(NpuRlError(f"what {EVIL}", where=f"where {EVIL}", why=why, hint=ESCAPES))
    assert RAW.search(text) is None
    assert len(text.splitlines()) == 5  # what, where, why and its second line, next
    assert "\\x1b" in text and "\\u202e" in text


@pytest.fixture
def hostile(world: World, tmp_path: Path) -> tuple[World, Path, Path]:
    """A manifest whose upstream has evil names and subjects, locked and set up; evil files in the workspace."""
    up = world.repo()
    base = up.commit({"pkg/a.py": "a = 1\n", f"pkg/{EVIL}.txt": "x\n"}, f"subject {ESCAPES}")
    up.commit({f"out/{EVIL}": "y\n", "pkg/b.py": "b = 1\n"}, f"pull {ESCAPES}", on="pull", parents=["main"])
    up.pull(1, "pull")
    merge = [{"ref": "refs/pull/1/head", "base": "refs/heads/main"}]
    manifest = world.manifest({"up": component(up, base, merge=merge)})
    workspace = tmp_path / "ws"
    ok(run_cli(["lock", "-m", manifest], world.env))
    ok(run_cli(["setup", "-m", manifest, "-w", workspace], world.env))
    (workspace / "code" / f"{EVIL}.py").write_text("z = 1\n")
    (workspace / "code" / "pkg" / f"{EVIL}.log").write_text("z = 1\n")
    (workspace / "code" / "pkg" / "a.py").write_text(f"a = '{ESCAPES}'\n")
    return world, manifest, workspace


@pytest.mark.second
def test_every_command_is_tame(hostile: tuple[World, Path, Path], tmp_path: Path) -> None:
    world, manifest, workspace = hostile
    recipe = tmp_path / f"{ESCAPES}.yaml"
    recipe.write_text(f"schema: 1\nname: x\ntitle: 'a \u202e b'\nextends: '{ESCAPES[:1]}quickstart'\n")
    commands: list[list[str | Path]] = [
        ["lock", "-m", manifest],
        ["lock", "-m", manifest, "--check"],
        ["setup", "-m", manifest, "-w", workspace],
        ["verify", "-w", workspace],
        ["verify", "-w", workspace, "--deep", "--json"],
        ["status", "-w", workspace],
        ["summary", "-w", workspace, "--import-time"],
        ["recipes", "check", recipe, "-w", workspace],
        ["plan", recipe, f"optimizer.lr={ESCAPES}"],
        ["train", recipe, "-w", workspace, "--dry-run"],
        ["setup", "-m", manifest, "-w", workspace, "--discard"],
    ]
    for command in commands:
        done = run_tame(command, world, tmp_path)
        if "--json" in command and done.stdout:
            json.loads(done.stdout)


def test_the_texts_of_a_forged_lock_are_tame(hostile: tuple[World, Path, Path]) -> None:
    world, manifest, workspace = hostile
    body = json.loads(manifest.with_name("m.lock.json").read_text())
    forgeries: list[Callable[[dict[str, Any]], object]] = [
        lambda b: b.update(title=EVIL),
        lambda b: b["components"]["up"]["merges"][0].update(commits=[EVIL]),
        lambda b: b.update({EVIL: 1}),
        lambda b: b.update(env={"A": EVIL}),
    ]
    for forge in forgeries:
        forged = json.loads(json.dumps(body))
        forge(forged)
        place = world.write("forged.json", seal(forged))
        run_tame(["setup", "-m", manifest, "--lock", place, "-w", workspace], world)


def test_a_symlink_out_of_the_tree_is_told_tamely(world: World) -> None:
    up = world.repo()
    up.commit({"pkg/a": File(f"/{EVIL}", "120000")})
    manifest = world.manifest({"up": component(up, up.id("main"))})
    assert_told(run_tame(["lock", "-m", manifest], world), "points outside the tree")
