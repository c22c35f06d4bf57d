from __future__ import annotations

from pathlib import Path

import pytest

from tests.port.upstream_versions import Versions, build_versions, copy_versions


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return build_versions(tmp_path_factory.mktemp("versions"))


@pytest.fixture
def versions(built: Versions, tmp_path: Path) -> Versions:
    """A stack with one component of two versions, and its seven patches."""
    return copy_versions(built, tmp_path)
