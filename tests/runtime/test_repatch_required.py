"""What is said where MindSpeed can't be imported. verl's own module:
patchsets/witnesses/mindspeed-missing-unnoticed.py."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from npu_rl.runtime.repatch_required import missing


def failure(module: str) -> ImportError:
    with pytest.raises(ImportError) as raised:
        importlib.import_module(module)
    return raised.value


def build(error: ImportError) -> None:
    """What a worker does first, by what its module has for `repatch`."""
    repatch = missing(error)
    assert repatch is not None
    repatch({"use_flash_attn": True})


def test_a_missing_module_is_named() -> None:
    error = failure("no_such_module_at_all")
    with pytest.raises(ImportError, match="it needs the module no_such_module_at_all") as raised:
        build(error)
    assert raised.value.__cause__ is error
    assert raised.value.name == "no_such_module_at_all"
    for said in ("without MindSpeed's kernels", "npu-rl verify", "NPU_RL_REPATCH_REQUIRED=0"):
        assert said in str(raised.value)


def test_any_other_failure_keeps_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is there and lacks a name: an ImportError which is no ModuleNotFoundError."""
    (tmp_path / "half_a_mindspeed.py").write_text("from os import no_such_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    error = failure("half_a_mindspeed")
    with pytest.raises(ImportError, match=r"cannot import name 'no_such_name'.*module os") as raised:
        build(error)
    assert raised.value.path == error.path

    with pytest.raises(ImportError, match=r"can't be imported: libascend_hal\.so: cannot open"):
        build(ImportError("libascend_hal.so: cannot open shared object file"))


@pytest.mark.parametrize("value", ["0", "off"])
def test_switched_off_it_is_upstreams_none(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_RL_REPATCH_REQUIRED", value)
    assert missing(ImportError("any")) is None


def test_a_switch_that_is_neither_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_RL_REPATCH_REQUIRED", "maybe")
    with pytest.raises(ValueError, match="write 1 or 0"):
        missing(ImportError("any"))
