from __future__ import annotations

import os
from typing import Any

import pytest


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with three free blocks."""
    real = os.statvfs

    def little(path: Any) -> Any:
        found = list(real(path))
        found[4] = 3  # f_bavail
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", little)
