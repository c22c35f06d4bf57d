"""Settings of the network, and what is shown of a remote."""

from __future__ import annotations

import pytest

from npu_rl.common.errors import UsageError
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.url_rewriting import Rewrites


def test_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STALL", "RETRIES", "BACKOFF"):
        monkeypatch.delenv(f"NPU_RL_{name}", raising=False)
    assert Network.from_environment(Rewrites()) == Network(stall=60, retries=3, backoff=1)
    for name, value in {"STALL": "2.5", "RETRIES": "0", "BACKOFF": "0"}.items():
        monkeypatch.setenv(f"NPU_RL_{name}", value)
    assert Network.from_environment(Rewrites(), offline=True) == Network(
        stall=2.5, retries=0, backoff=0, offline=True
    )


@pytest.mark.parametrize("value", ["x", "-1", "nan", "inf", "1e9"])
@pytest.mark.parametrize("name", ["STALL", "RETRIES", "BACKOFF"])
def test_a_setting_that_is_no_number(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"NPU_RL_{name}", value)
    with pytest.raises(UsageError, match=f"NPU_RL_{name}") as caught:
        Network.from_environment(Rewrites())
    assert value in str(caught.value)
