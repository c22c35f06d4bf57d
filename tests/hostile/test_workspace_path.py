"""A workspace where Python or a shell would look elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.test_outputs import small
from tests.resolve.world import World
from tests.support import assert_told, run_cli


@pytest.mark.parametrize("name", ["co:lon/ws", "two\nlines", "end\n", "e\x1b[31m", "ws:"])
def test_a_path_that_would_be_read_as_another_is_refused(name: str, world: World, tmp_path: Path) -> None:
    manifest = small(world)
    assert run_cli(["lock", "-m", manifest], world.env).returncode == 0
    done = run_cli(["setup", "-m", manifest, "-w", tmp_path / name], world.env)
    assert_told(done, "Invalid workspace path", code=3)
    assert not (tmp_path / name).exists()


def test_nothing_is_trained_in_a_workspace_that_was_moved_to_such_a_path(
    world: World, tmp_path: Path
) -> None:
    manifest = small(world)
    assert run_cli(["lock", "-m", manifest], world.env).returncode == 0
    assert run_cli(["setup", "-m", manifest, "-w", tmp_path / "ws"], world.env).returncode == 0
    moved = (tmp_path / "ws").rename(tmp_path / "w:s")
    assert run_cli(["verify", "-w", moved], world.env).returncode == 0  # the bytes are as locked
    done = run_cli(["train", "quickstart", "-w", moved, "--dry-run"], world.env)
    assert_told(done, "Invalid workspace path", "PYTHONPATH", code=3)
