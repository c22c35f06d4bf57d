"""Nothing that comes from outside steers a terminal, or passes for a line of npu-rl's."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.common.printable import one_line, printable
from tests.hostile.test_bounds import seal
from tests.resolve.world import World
from tests.support import File, ok, run_cli

ESCAPES = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202etxt\u2066\x7f\r"
LINE = "\nnothing equals its lock: 0 files\nnpu-rl: "
EVIL = f"e{ESCAPES}{LINE}e".replace("/", "")
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def assert_tame(text: str) -> None:
    found = RAW.search(text)
    assert found is None, (found, text[max(0, found.start() - 80) : found.end() + 20])
    forged = [line for line in text.splitlines() if line.startswith("nothing equals")]
    assert not forged, text


def test_the_text_of_an_error_is_tame() -> None:
    text = str(
        NpuRlError(f"what {EVIL}", where=f"where {EVIL}", why=f"{ESCAPES} of\ntwo lines", hint=ESCAPES)
    )
    assert RAW.search(text) is None
    assert len(text.splitlines()) == 5  # what, where, why and its second line, next
    assert "\\x1b" in text and "\\u202e" in text


@pytest.mark.parametrize("text", ["", "plain", "größer 大 ‘’ 🚀", "a\tb"])
def test_what_has_a_shape_stays(text: str) -> None:
    assert printable(text) == text
    assert one_line(text) == text.replace("\t", "\\t")


@pytest.fixture
def hostile(world: World, tmp_path: Path) -> tuple[World, Path, Path]:
    """A manifest whose upstream has evil names and subjects, locked and set up; evil files in the workspace."""
    up = world.repo()
    base = up.commit({"pkg/a.py": "a = 1\n", f"pkg/{EVIL}.txt": "x\n"}, f"subject {ESCAPES}")
    up.commit({f"out/{EVIL}": "y\n", "pkg/b.py": "b = 1\n"}, f"pull {ESCAPES}", on="pull", parents=["main"])
    up.pull(1, "pull")
    take = [{"from": "pkg", "to": "pkg"}]
    merge = [{"ref": "refs/pull/1/head", "base": "refs/heads/main"}]
    manifest = world.manifest(
        {"up": {"ref": base, "sources": [{"git": up.url}], "take": take, "merge": merge}}
    )
    workspace = tmp_path / "ws"
    assert run_cli(["lock", "-m", manifest], world.env).returncode == 0
    ok(run_cli(["setup", "-m", manifest, "-w", workspace], world.env))
    (workspace / "code" / f"{EVIL}.py").write_text("z = 1\n")
    (workspace / "code" / "pkg" / f"{EVIL}.log").write_text("z = 1\n")
    (workspace / "code" / "pkg" / "a.py").write_text(f"a = '{ESCAPES}'\n")
    return world, manifest, workspace


def test_every_command_is_tame(hostile: tuple[World, Path, Path], tmp_path: Path) -> None:
    world, manifest, workspace = hostile
    recipe = tmp_path / f"{ESCAPES}.yaml"
    recipe.write_text(f"schema: 1\nname: x\ntitle: 'a \u202e b'\nextends: '{ESCAPES[:1]}quickstart'\n")
    commands: list[list[str | Path]] = [
        ["lock", "-m", manifest],
        ["lock", "-m", manifest, "--check"],
        ["lock", "-m", manifest, "-o", tmp_path / EVIL / "x"],
        ["lock", "-m", tmp_path / f"{EVIL}.yaml"],
        ["setup", "-m", manifest, "-w", workspace],
        ["setup", "-m", manifest, "-w", workspace, "--json"],
        ["verify", "-w", workspace],
        ["verify", "-w", workspace, "--deep", "--json"],
        ["status", "-w", workspace],
        ["status", "-w", workspace, "--json"],
        ["diff", "-w", tmp_path / EVIL],
        ["summary", "-w", workspace, "--import-time"],
        ["summary", "-w", workspace, "--import-time", "--json"],
        ["summary", "-m", manifest, "--markdown"],
        ["summary", "-m", manifest, "--patch", ESCAPES],
        ["recipes", "check", recipe, "-w", workspace],
        ["recipes", "check", recipe, "-w", workspace, "--json"],
        ["recipes", "show", "quickstart", f"title={ESCAPES}"],
        ["recipes", "show", "quickstart", "title=a\u202eb", "--json"],
        ["recipes", "copy", "quickstart", tmp_path / EVIL / "x.yaml"],
        ["plan", recipe, f"optimizer.lr={ESCAPES}"],
        ["train", recipe, "-w", workspace, "--dry-run"],
        ["setup", "-m", manifest, "-w", workspace, "--discard"],
    ]
    for command in commands:
        done = run_cli(command, world.env, tmp_path)
        assert "Traceback" not in done.stderr, (command, done.stderr)
        assert_tame(done.stdout)
        assert_tame(done.stderr)
        if "--json" in command and done.stdout:
            json.loads(done.stdout)


def test_the_texts_of_a_forged_lock_are_tame(hostile: tuple[World, Path, Path]) -> None:
    world, manifest, workspace = hostile
    body = json.loads(manifest.with_name("m.lock.json").read_text())
    forgeries: list[Callable[[dict[str, Any]], object]] = [
        lambda b: b.update(title=EVIL),
        lambda b: b["components"]["up"]["merges"][0].update(commits=[EVIL]),
        lambda b: b["components"]["up"]["merges"][0].update(outside=[EVIL], inside=[EVIL]),
        lambda b: b.update({EVIL: 1}),
        lambda b: b["components"].update({EVIL: {}}),
        lambda b: b.update(requirements=[EVIL]),
        lambda b: b.update(env={"A": EVIL}),
    ]
    for forge in forgeries:
        forged = json.loads(json.dumps(body))
        forge(forged)
        place = world.write("forged.json", seal(forged))
        done = run_cli(["setup", "-m", manifest, "--lock", place, "-w", workspace], world.env)
        assert "Traceback" not in done.stderr
        assert_tame(done.stdout)
        assert_tame(done.stderr)


def test_a_forged_receipt_is_tame(hostile: tuple[World, Path, Path]) -> None:
    world, _, workspace = hostile
    place = workspace / ".npu-rl" / "receipt.json"
    body = json.loads(place.read_text())
    body.pop("digest")
    body["setup"] = {"npu_rl": EVIL, "made": 0, "manifest": EVIL, "python": EVIL, "activate": EVIL}
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))[1:]
    rest = f'",{text}'
    place.write_text('{"digest":"' + hashlib.sha256(rest.encode()).hexdigest() + rest)
    for command in ("status", "verify", "diff"):
        done = run_cli([command, "-w", workspace], world.env)
        assert "Traceback" not in done.stderr, done.stderr
        assert_tame(done.stderr)
        if command != "diff":  # a patch is bytes
            assert_tame(done.stdout)


def on_terminal(args: list[str | Path], env: Mapping[str, str]) -> bytes:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "npu_rl", *map(str, args)],
        env={**env, "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:  # EIO: the other side is closed
        pass
    os.close(ours)
    process.wait()
    return seen


def test_a_diff_is_bytes_in_a_pipe_and_tame_on_a_terminal(hostile: tuple[World, Path, Path]) -> None:
    world, _, workspace = hostile
    raw = subprocess.run(
        [sys.executable, "-m", "npu_rl", "diff", "-w", str(workspace)],
        env=world.env,
        capture_output=True,
        check=True,
    ).stdout
    assert ESCAPES.replace("\r", "").encode() in raw.replace(b"\r", b"")
    seen = on_terminal(["diff", "-w", workspace], world.env).decode().replace("\r\n", "\n")
    assert "\\x1b]0;owned" in seen
    assert_tame(seen)


def test_a_symlink_out_of_the_tree_is_told_tamely(world: World) -> None:
    up = world.repo()
    up.commit({"pkg/a": File(f"/{EVIL}", "120000")})
    take = [{"from": "pkg", "to": "pkg"}]
    manifest = world.manifest({"up": {"ref": up.id("main"), "sources": [{"git": up.url}], "take": take}})
    done = run_cli(["lock", "-m", manifest], world.env)
    assert done.returncode == 1 and "points outside the tree" in done.stderr
    assert_tame(done.stderr)
