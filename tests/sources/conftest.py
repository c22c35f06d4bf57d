"""What the tests of sources share: an upstream to fetch from, and a store that must be tidy afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from npu_rl.stack.git.command import init_bare
from npu_rl.stack.store import Store
from tests.sources.mirrors import Upstream, left_behind, make_upstream
from tests.sources.package_index import index

__all__ = ["index", "store", "upstream"]


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Upstream:
    return make_upstream(tmp_path_factory.mktemp("served"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store")
    yield store
    assert left_behind(store) == [], "something was left in the store's tmp"


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """An empty repository."""
    init_bare(tmp_path / "scratch")
    return tmp_path / "scratch"
