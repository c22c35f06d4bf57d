"""RoPE's base and scaling in a configuration of transformers 4, of transformers 5 and of a checkpoint's own class."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from npu_rl.runtime import rope_layout

YARN = {"factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "mscale": 1.0}


class Config(SimpleNamespace):
    """Iterates over the names of its attributes, as those of transformers do."""

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))


@pytest.mark.parametrize(
    ("config", "base", "scaling"),
    [
        (Config(rope_theta=1e4, rope_scaling=None), 1e4, {}),
        (Config(rope_theta=1e4), 1e4, {}),
        (Config(rope_theta=1e4, rope_scaling={"type": "yarn", **YARN}), 1e4, {"type": "yarn", **YARN}),
        (
            Config(rope_theta=1e4, rope_scaling={"rope_type": "yarn", **YARN}),
            1e4,
            {"rope_type": "yarn", "type": "yarn", **YARN},
        ),
        (Config(rope_parameters={"rope_theta": 1e6, "rope_type": "default"}), 1e6, {}),
        (
            Config(rope_parameters={"rope_theta": 1e4, "rope_type": "yarn", **YARN}),
            1e4,
            {"rope_theta": 1e4, "rope_type": "yarn", "type": "yarn", **YARN},
        ),
        (Config(rope_theta=5.0, rope_parameters={"rope_theta": 1e4}), 5.0, {}),
        (  # transformers 5, the checkpoint's own class
            Config(rope_theta=5.0, rope_parameters={"rope_theta": 5.0, "rope_type": "yarn", **YARN}),
            5.0,
            {"rope_theta": 5.0, "rope_type": "yarn", "type": "yarn", **YARN},
        ),
    ],
)
def test_both_layouts(config: Any, base: float, scaling: dict[str, Any]) -> None:
    assert rope_layout.base(config) == base
    assert rope_layout.scaling(config) == scaling


def test_a_configuration_without_either(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AttributeError, match="rope_theta"):
        rope_layout.base(Config(rope_parameters=None))
    monkeypatch.setenv("NPU_RL_ROPE_LAYOUT", "0")
    with pytest.raises(AttributeError, match="rope_theta"):
        rope_layout.base(Config(rope_parameters={"rope_theta": 1e4}))
