from __future__ import annotations

from collections.abc import Callable

import pytest

from npu_rl.data import bundled_patchset
from npu_rl.patches.match import apply_exact
from npu_rl.patches.parse import parse_patch
from npu_rl.patches.series import read_patchset

Patched = Callable[[str, str, bytes], bytes]


@pytest.fixture(scope="session")
def patched() -> Patched:
    """`patched("verl/0.5.0", path, content)`: a file after every patch of the bundled patchset."""

    def apply(patchset: str, path: str, content: bytes) -> bytes:
        for source in read_patchset(bundled_patchset(patchset), lint=True):
            for file in parse_patch(source.data, name=source.name).files:
                if file.path == path:
                    result = apply_exact(content, file, name=source.name)
                    assert result is not None
                    content = result
        return content

    return apply
