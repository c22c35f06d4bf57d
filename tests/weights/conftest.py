from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.tensors import megatron_checkpoints as tiny


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with three free blocks."""
    real = os.statvfs

    def little(path: Any) -> Any:
        found = list(real(path))
        found[4] = 3  # f_bavail
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", little)


@pytest.fixture
def deepseek(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A tiny DeepSeek-V3 in Hugging Face's format, and its tensors."""
    tensors = tiny.hf_tensors(tiny.DEEPSEEK)
    return tiny.write_hf(tmp_path / "hf", tiny.DEEPSEEK, tensors), tensors
