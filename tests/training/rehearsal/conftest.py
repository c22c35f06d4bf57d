from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def code_tree() -> Path:
    """The code of a workspace that was set up from the quickstart's manifest."""
    place = os.environ.get("NPU_RL_TEST_CODE")
    if not place:
        pytest.skip("NPU_RL_TEST_CODE does not name the code/ folder of a quickstart workspace")
    code = Path(place)
    assert (code / "megatron" / "core").is_dir(), f"{code} is no quickstart tree"
    return code


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter these tests run in, as the training interpreter."""
    return Path(sys.executable)


@pytest.fixture
def environment() -> Mapping[str, str]:
    """What a training process would be given, without anything of this test run."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
