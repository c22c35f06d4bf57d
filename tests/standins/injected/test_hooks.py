from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import pytest

from npu_rl.rehearsal.injected.npu_rl_standins.hooks import after_import


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of a name of its own on sys.path, with one module `inner`."""
    name = f"hooked_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("VALUE = 1\nfrom . import inner\nSEEN = inner.VALUE\n")
    (folder / "inner.py").write_text("VALUE = 2\n\n\ndef shown():\n    return VALUE\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_the_change_comes_before_anyone_sees_the_module(package: str) -> None:
    def change(module: types.ModuleType) -> None:
        module.VALUE = 20  # type: ignore[attr-defined]

    after_import(f"{package}.inner", change)
    module = importlib.import_module(package)
    assert module.SEEN == 20
    assert module.inner.shown() == 20


def test_a_module_that_is_there_is_changed_at_once(package: str) -> None:
    module = importlib.import_module(package)
    after_import(package, lambda found: setattr(found, "VALUE", 10))
    assert module.VALUE == 10


def test_a_failed_import_leaves_the_hook_waiting(package: str, tmp_path: Path) -> None:
    broken = tmp_path / package / "inner.py"
    whole = broken.read_text()
    broken.write_text("raise RuntimeError('not yet')\n")
    seen: list[str] = []
    after_import(f"{package}.inner", lambda module: seen.append(module.__name__))
    with pytest.raises(RuntimeError, match="not yet"):
        importlib.import_module(package)
    assert seen == []
    broken.write_text(whole)
    importlib.invalidate_caches()
    importlib.import_module(package)
    assert seen == [f"{package}.inner"]


def test_a_change_that_fails_fails_the_import(package: str) -> None:
    def change(_: types.ModuleType) -> None:
        raise AttributeError("the function to stand in for is gone")

    after_import(package, change)
    with pytest.raises(AttributeError, match="is gone"):
        importlib.import_module(package)


def test_a_module_that_is_being_imported_is_changed_at_the_next_import(package: str, tmp_path: Path) -> None:
    """MindSpeed's builder imports torch_npu, which wants to change that very builder."""
    seen: list[str] = []
    inner = tmp_path / package / "inner.py"
    hook = types.ModuleType("hook_of_inner")
    sys.modules["hook_of_inner"] = hook

    def begin() -> None:
        after_import(f"{package}.inner", lambda module: seen.append(str(module.VALUE)))

    hook.begin = begin  # type: ignore[attr-defined]
    inner.write_text("from hook_of_inner import begin\nbegin()\nVALUE = 2\n")
    try:
        importlib.import_module(f"{package}.inner")
        assert seen == []
        (tmp_path / f"{package}_later.py").write_text("")
        importlib.import_module(f"{package}_later")
        assert seen == ["2"]
    finally:
        del sys.modules["hook_of_inner"]
