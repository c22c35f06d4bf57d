from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from npu_rl.common.process import RUN_VARIABLE
from tests.training.processes import new_id


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter these tests run in, as the training interpreter."""
    return Path(sys.executable)


@pytest.fixture
def environment() -> Mapping[str, str]:
    """What a training process would be given, without anything of this test run."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, RUN_VARIABLE: new_id()}
