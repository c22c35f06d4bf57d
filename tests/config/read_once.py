"""Parsed texts of YAML, kept: the tests of a room read the same recipes and manifests some hundred times."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest

from npu_rl.common.yaml_documents import yaml_reader

_read = lru_cache(maxsize=64)(yaml_reader._read)


@pytest.fixture(autouse=True, scope="module")
def _yaml_is_parsed_once() -> Iterator[None]:
    """Keep the nodes, which nothing changes; the data of each reader is its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_reader, "_read", _read)
        yield
