"""The README is part of the product: its commands exist, and CI runs the test command it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import clean_env, run_cli

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    names = "setup|verify|train|plan|recipes \\w+|status|diff|list|lock|schema|store gc"
    return sorted(set(re.findall(rf"(?<![\w/.-])npu-rl ((?:{names})\b[^#\n`&|*]*)", README)))


@pytest.mark.parametrize("command", commands())
def test_every_command_in_it_is_one(tmp_path: Path, command: str) -> None:
    words = command.split()
    name = words[:2] if words[0] in ("store", "recipes") else words[:1]
    shown = run_cli([*name, "--help"], clean_env(tmp_path))
    assert shown.returncode == 0, shown.stderr
    for option in re.findall(r"--[a-z][a-z-]*", command):
        assert re.search(rf"(?<![\w-]){option}\b", shown.stdout), f"{option} is no option of {name}"


def test_ci_runs_the_test_command_it_names() -> None:
    tests = "python -m pytest -q -n 2"
    assert f".venv/bin/{tests}" in README
    assert tests in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_it_names_every_bundled_manifest() -> None:
    for folder in ("manifests", "recipes"):
        for path in (ROOT / folder).glob("*.yaml"):
            assert "." in path.stem or f"`{path.stem}`" in README
