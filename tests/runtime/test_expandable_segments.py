"""When expandable segments are switched. In verl's own sharding managers:
patchsets/witnesses/expandable-segments-break-sleep.py."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from npu_rl.runtime.expandable_segments import disable_before, enable_after

SWITCH = "NPU_RL_WORKERS_EXPANDABLE_SEGMENTS"
OFF, ON = "expandable_segments:False", "expandable_segments:True"


class Manager:
    """A sharding manager that notes when it is entered and left."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.fails = False

    @disable_before
    def __enter__(self) -> None:
        self.calls.append("wake up")
        if self.fails:
            raise KeyError("weights")

    @enable_after
    def __exit__(self, *_: object) -> None:
        self.calls.append("sleep")
        if self.fails:
            raise KeyError("memory")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    noted: list[str] = []
    npu = SimpleNamespace(
        is_available=lambda: True, memory=SimpleNamespace(_set_allocator_settings=noted.append)
    )
    lay(monkeypatch, npu)
    monkeypatch.setenv(SWITCH, "1")
    return noted


def lay(monkeypatch: pytest.MonkeyPatch, npu: Any) -> None:
    torch = ModuleType("torch")
    if npu is not None:
        torch.npu = npu  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)


def test_they_are_off_while_the_engine_is_awake(calls: list[str]) -> None:
    with Manager(calls):
        calls.append("generate")
    assert calls == [OFF, "wake up", "generate", "sleep", ON]


def test_an_error_leaves_them_on(calls: list[str]) -> None:
    manager = Manager(calls)
    manager.fails = True
    with pytest.raises(KeyError, match="weights"), manager:
        raise AssertionError("it was not entered")
    assert calls == [OFF, "wake up", ON]
    with pytest.raises(KeyError, match="memory"):
        manager.__exit__()
    assert calls[3:] == ["sleep", ON]


@pytest.mark.parametrize("switch", ["", "0"])
def test_off_by_default(calls: list[str], monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    monkeypatch.setenv(SWITCH, switch)
    with Manager(calls):
        pass
    assert calls == ["wake up", "sleep"]


def test_a_torch_npu_that_cannot(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lay(monkeypatch, SimpleNamespace(is_available=lambda: True, memory=SimpleNamespace()))
    with pytest.raises(RuntimeError, match=f"{SWITCH}=0"), Manager(calls):
        pass
