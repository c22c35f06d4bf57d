from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from npu_rl.bundled import bundled_patchset
from npu_rl.patches.hunk_match import apply_exact
from npu_rl.patches.parse_patch import parse_patch
from npu_rl.patches.series import read_patchset

WITHOUT = "NPU_RL_TEST_WITHOUT"
"""Names a patch that every test is to go without, to see that its own tests fail then (test_each_is_needed.py)."""

Patched = Callable[[str, str, bytes], bytes]


@pytest.fixture(scope="session")
def patched() -> Patched:
    """`patched("verl/0.5.0", path, content)`: a file after every patch of the bundled patchset, but for WITHOUT's."""

    def apply(patchset: str, path: str, content: bytes) -> bytes:
        for source in read_patchset(bundled_patchset(patchset), lint=True):
            if os.environ.get(WITHOUT) == source.name:
                continue
            for file in parse_patch(source.data, name=source.name).files:
                if file.path == path:
                    result = apply_exact(content, file, name=source.name)
                    assert result is not None
                    content = result
        return content

    return apply
