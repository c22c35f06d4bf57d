"""Nothing that comes from outside steers a terminal, or passes for a line of npu-rl's."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.common.printable import one_line, printable
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.hostile.test_bounds import seal
from tests.resolve.world import World, component
from tests.support import File, assert_told, clean_env, ok, run_cli
from tests.workspace.stack import receipt_with

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


@pytest.mark.parametrize("text", ["", "plain", "größer 大 ‘’ 🚀", "a\tb"])
def test_what_has_a_shape_stays(text: str) -> None:
    assert printable(text) == text
    assert one_line(text) == text.replace("\t", "\\t")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("空.yaml", "空.yaml"),
        ("\u202etxt", "\\u202etxt"),  # right-to-left override
        ("\x9b2J", "\\x9b2J"),
    ],
)
def test_a_name_is_shown_alike_if_the_locale_is_ascii(name: str, shown: str) -> None:
    undecoded = name.encode().decode("ascii", "surrogateescape")
    assert printable(undecoded) == one_line(undecoded) == shown


def test_bytes_that_are_no_text_are_escaped() -> None:
    assert printable(b"\xe7\xa9x".decode("ascii", "surrogateescape")) == "\\udce7\\udca9x"


def test_an_error_in_an_ascii_locale_names_the_file_by_its_characters(tmp_path: Path) -> None:
    env = {**clean_env(tmp_path), "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    done = run_cli(["recipes", "show", "./空.yaml"], env, tmp_path, from_nothing=True)
    assert done.returncode != 0
    assert "./\\u7a7a.yaml" in done.stderr, done.stderr


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
        done = run_tame(command, world, tmp_path)
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
        run_tame(["setup", "-m", manifest, "--lock", place, "-w", workspace], world)


def test_a_forged_receipt_is_tame(hostile: tuple[World, Path, Path]) -> None:
    world, _, workspace = hostile
    evil = {"made": 0, **dict.fromkeys(("npu_rl", "manifest", "python", "activate"), EVIL)}
    receipt_with(WorkspacePaths(workspace), lambda body: body.update(setup=evil))
    for command in ("status", "verify", "diff"):
        run_tame([command, "-w", workspace], world)


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
    shown = [sys.executable, "-m", "npu_rl", "diff", "-w", workspace]
    raw = subprocess.run(shown, env=world.env, capture_output=True, check=True).stdout
    assert ESCAPES.replace("\r", "").encode() in raw.replace(b"\r", b"")
    seen = on_terminal(["diff", "-w", workspace], world.env).decode().replace("\r\n", "\n")
    assert "\\x1b]0;owned" in seen
    assert_tame(seen)


def test_a_symlink_out_of_the_tree_is_told_tamely(world: World) -> None:
    up = world.repo()
    up.commit({"pkg/a": File(f"/{EVIL}", "120000")})
    manifest = world.manifest({"up": component(up, up.id("main"))})
    assert_told(run_tame(["lock", "-m", manifest], world), "points outside the tree")
