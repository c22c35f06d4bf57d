"""The expert groups of a config.json. In mbridge and Megatron-core: patchsets/witnesses/router-groups-lost.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from npu_rl.runtime import router_groups

OPTIONS = {"moe_router_num_groups": 8, "moe_router_group_topk": 4}


@pytest.mark.parametrize(
    ("groups", "switch", "options"), [(8, "1", OPTIONS), (8, "0", {}), (1, "1", {}), (None, "1", {})]
)
def test_groups_are_passed_on_and_counted(
    monkeypatch: pytest.MonkeyPatch, groups: int | None, switch: str, options: dict[str, int]
) -> None:
    counted: list[str] = []
    monkeypatch.setattr(router_groups, "count", counted.append)
    monkeypatch.setenv("NPU_RL_ROUTER_GROUPS", switch)
    assert router_groups.transformer_options(SimpleNamespace(n_group=groups, topk_group=4)) == options
    assert counted == [router_groups.SLUG] * bool(options)
