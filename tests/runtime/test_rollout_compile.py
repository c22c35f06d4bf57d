"""torch.compile while a rollout runs, under MindSpeed's own patch manager. verl's worker:
patchsets/witnesses/rollout-never-compiles.py."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu_rl.runtime.rollout_compile import with_real_compile
from tests.support import git

PIN = "7ff818c4c77ddb290f61261a6f12d7cfa1bf62e2"
SWITCH = "NPU_RL_ROLLOUT_COMPILE"
real = pytest.mark.upstreams, pytest.mark.rehearsal


def marked(test: Callable[..., None]) -> Callable[..., None]:
    for mark in real:
        test = mark(test)
    return test


@with_real_compile
def now() -> Any:
    """What torch.compile is in a rollout."""
    import torch

    return torch.compile


class MindSpeed:
    """MindSpeed's own patch manager and what its features do with it at each (re)patch."""

    def __init__(self, module: types.ModuleType, torch: Any) -> None:
        self.manager = module.MindSpeedPatchesManager
        self.torch = torch
        self.true = torch.compile

    def dummy(self, *args: Any, **kwargs: Any) -> None:
        """Where MindSpeed's dummy_compile stands in for torch.compile."""

    def register(self) -> None:
        self.manager.register_patch("torch.compile", self.dummy)
        self.manager.register_patch("torch.jit.script", self.dummy)

    def apply(self) -> None:
        self.manager.apply_patches()

    def remove(self) -> None:
        self.manager.remove_patches()

    def repatch(self) -> None:
        """mindspeed/megatron_adaptor.py: remove, register, apply for the first features, apply for the others."""
        self.remove()
        self.register()
        self.apply()
        self.apply()

    @property
    def is_on(self) -> bool:
        return self.torch.compile == self.dummy


@pytest.fixture
def nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mindspeed"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def package(upstreams: Path, nothing_there: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """mindspeed/patch_utils.py of the pin on sys.path; it is imported by nobody yet."""
    monkeypatch.syspath_prepend(str(tmp_path))
    source = git(
        "cat-file", "blob", f"{PIN}:mindspeed/patch_utils.py", git_dir=upstreams / "Ascend+MindSpeed/repo"
    )
    (tmp_path / "mindspeed").mkdir()
    (tmp_path / "mindspeed" / "__init__.py").touch()
    (tmp_path / "mindspeed" / "patch_utils.py").write_text(source)
    return tmp_path


@pytest.fixture
def mindspeed(package: Path) -> Iterator[MindSpeed]:
    """Registered and applied."""
    torch: Any = pytest.importorskip("torch")
    script = torch.jit.script
    found = MindSpeed(importlib.import_module("mindspeed.patch_utils"), torch)
    found.repatch()
    assert found.is_on
    yield found
    found.remove()
    assert torch.compile is found.true and torch.jit.script is script
    found.manager.patches_info.clear()
    for name in ("mindspeed", "mindspeed.patch_utils"):
        sys.modules.pop(name, None)


@marked
def test_it_is_the_true_one_inside_and_mindspeeds_after(mindspeed: MindSpeed) -> None:
    assert now() is mindspeed.true
    assert mindspeed.is_on
    assert mindspeed.torch.jit.script == mindspeed.dummy


@marked
@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_every_way_out_restores_it(mindspeed: MindSpeed, kind: type[BaseException]) -> None:
    @with_real_compile
    def fails() -> None:
        assert now() is mindspeed.true  # a call in a call
        assert mindspeed.torch.compile is mindspeed.true
        raise kind("out")

    with pytest.raises(kind, match="out"):
        fails()
    assert mindspeed.is_on


@marked
def test_modules_that_took_it_by_name(mindspeed: MindSpeed, monkeypatch: pytest.MonkeyPatch) -> None:
    """`from torch import compile`, before and during a rollout, as MindSpeed's own search finds them."""
    early, late = types.ModuleType("early"), types.ModuleType("late")
    early.__dict__["compile"] = mindspeed.torch.compile
    monkeypatch.setitem(sys.modules, "early", early)

    @with_real_compile
    def rollout() -> None:
        assert vars(early)["compile"] is mindspeed.true
        monkeypatch.setitem(sys.modules, "late", late)
        late.__dict__["compile"] = mindspeed.torch.compile

    rollout()
    assert vars(early)["compile"] == vars(late)["compile"] == mindspeed.dummy


@marked
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.recursive(st.sampled_from(["repatch", "apply", "remove"]), lambda step: st.lists(step, max_size=4)))
def test_any_order_ends_as_without_a_rollout(mindspeed: MindSpeed, steps: Any) -> None:
    """What MindSpeed did, in rollouts (lists) in whatever depth, leaves the state that it leaves outside of any."""
    mindspeed.repatch()

    def go(step: Any, inside: bool) -> None:
        if isinstance(step, str):
            getattr(mindspeed, step)()
        else:
            with_real_compile(lambda: [go(each, True) for each in step])()
        assert not (inside and mindspeed.is_on)

    def plainly(step: Any) -> None:
        if isinstance(step, str):
            getattr(mindspeed, step)()
        else:
            for each in step:
                plainly(each)

    go([steps, steps], False)
    found = mindspeed.is_on
    mindspeed.repatch()
    plainly([steps, steps])
    assert mindspeed.is_on == found


@marked
def test_threads_share_it(mindspeed: MindSpeed) -> None:
    """Another thread sees the true one; the last of two rollouts to end restores."""
    started, finish, seen = threading.Event(), threading.Event(), []

    @with_real_compile
    def other() -> None:
        started.set()
        assert finish.wait(60)
        seen.append(mindspeed.torch.compile)

    thread = threading.Thread(target=other)
    thread.start()
    assert started.wait(60)
    assert now() is mindspeed.true
    assert mindspeed.torch.compile is mindspeed.true
    finish.set()
    thread.join(60)
    assert seen == [mindspeed.true]
    assert mindspeed.is_on


@pytest.mark.parametrize(("applied", "switch"), [(True, "1"), (True, "0"), (False, "1")])
def test_by_the_managers_own_state(
    nothing_there: None, monkeypatch: pytest.MonkeyPatch, applied: bool, switch: str
) -> None:
    """With the attributes of MindSpeed's manager that are read; a patch that is not applied is not put in."""

    def true() -> None: ...

    def dummy() -> None: ...

    class Patch:
        orig_func, final_patch_func, is_applied = staticmethod(true), staticmethod(dummy), applied

        def apply_patch(self) -> None: ...

    manager, user = types.ModuleType("mindspeed.patch_utils"), types.ModuleType("user")
    vars(manager).update(
        Patch=Patch, MindSpeedPatchesManager=types.SimpleNamespace(patches_info={"torch.compile": Patch()})
    )
    vars(user)["compile"] = outside = dummy if applied else true
    for module in (types.ModuleType("mindspeed"), manager, user):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv(SWITCH, switch)
    inside = with_real_compile(lambda: vars(user)["compile"])()
    assert inside is (true if switch == "1" else outside)
    assert vars(user)["compile"] is outside


def test_without_mindspeed_nothing_changes(nothing_there: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "path", [place for place in sys.path if not (Path(place) / "mindspeed").exists()]
    )

    @with_real_compile
    def answer(size: int, *, times: int = 1) -> int:
        """How many."""
        if not size:
            raise LookupError("none")
        return size * times

    before = set(sys.modules)
    assert answer(3, times=2) == 6
    with contextlib.suppress(LookupError):
        answer(0)
    assert "mindspeed" not in set(sys.modules) - before
    assert (answer.__name__, answer.__doc__) == ("answer", "How many.")


def test_attributes_of_a_function_are_kept() -> None:
    """verl's @register leaves its dispatch mode on the function, and reads it there."""

    def generate() -> None: ...

    generate.__dict__["attrs_3141562937"] = {"blocking": True}
    assert vars(with_real_compile(generate))["attrs_3141562937"] == {"blocking": True}


def test_what_runs_after_the_call_is_refused() -> None:
    def steps() -> Iterator[int]:
        yield 1

    async def generate() -> None: ...

    for function in (steps, generate):
        with pytest.raises(TypeError, match="its body runs after the call has ended"):
            with_real_compile(function)
