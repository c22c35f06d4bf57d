"""A tiny stack, so that hundreds of setups can be killed."""

from __future__ import annotations

import pytest

from tests.faults.stage import Stage, build


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return build(tmp_path_factory.mktemp("faults"))
