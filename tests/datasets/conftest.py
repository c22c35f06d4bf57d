from __future__ import annotations

from pathlib import Path

import pytest

from tests.datasets.test_prepare import deepscaler, write


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The file of a small deepscaler."""
    return write(tmp_path / "d.json", deepscaler(50))
