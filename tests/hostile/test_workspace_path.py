"""A workspace where Python or a shell would look elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.test_outputs import small
from tests.resolve.world import World
from tests.support import assert_told, run_cli


@pytest.mark.parametrize("name", ["co:lon/ws", "two\nlines"])
def test_a_path_that_would_be_read_as_another_is_refused(name: str, world: World, tmp_path: Path) -> None:
    manifest = small(world)
    assert run_cli(["lock", "-m", manifest], world.env).returncode == 0
    done = run_cli(["setup", "-m", manifest, "-w", tmp_path / name], world.env)
    assert_told(done, "Invalid workspace path", code=3)
    assert not (tmp_path / name).exists()
