from __future__ import annotations

import sys
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError
from npu_rl.common.interpreter import Interpreter, read_interpreter
from npu_rl.training.run.training_interpreter import require_packages


def interpreter(path: str = "/opt/python", version: str = "3.11.7", **packages: str) -> Interpreter:
    return Interpreter(path, version, {name.replace("_", "-"): one for name, one in packages.items()})


def test_an_interpreter_is_read_outside_of_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code tree has dist-info folders of its own; a package of that name still has to be installed."""
    info = tmp_path / "laid_only-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: laid-only\nVersion: 9.9\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = read_interpreter(sys.executable)
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert found.packages["pytest"] == pytest.__version__
    assert "laid-only" not in found.packages


def test_all_missing_packages_are_named_at_once() -> None:
    with pytest.raises(HostError) as caught:
        require_packages(
            interpreter(torch="2.5.1", numpy="1.26.4"), ["torch==2.13.0", "ray==2.42.1", "numpy==1.26.4"]
        )
    assert caught.value.why == "torch==2.13.0: 2.5.1 is installed\nray==2.42.1: not installed"


def test_local_and_development_versions_and_markers_are_judged_as_pip_does() -> None:
    require_packages(
        interpreter(torch="2.13.0+cpu", torch_npu="2.5.1.post1.dev20250619"),
        ["torch==2.13.0", "torch_npu>=2.5.1,<2.6", "pywin32==1; sys_platform == 'win32'"],
    )


@pytest.mark.parametrize("version", ["3.13.0", "3.9.18"])
def test_other_pythons_are_refused(version: str) -> None:
    with pytest.raises(HostError, match=r"can't run the training(?s:.)*--python python3\.12"):
        require_packages(interpreter(version=version), [])


REQUIRED = ["torch==2.13.0", "ray[default]==2.42.1", "numpy<2"]
WHEEL = "https://example.org/flash_attn-2.4.2.whl"
INSTALL = "npu-rl setup --install --python /opt/python"


@pytest.mark.parametrize(
    ("found", "required", "options", "command"),
    [
        (interpreter(numpy="1"), REQUIRED, {"install": INSTALL}, INSTALL),
        (interpreter(sys.executable), REQUIRED, {"install": INSTALL}, "pip install 'npu-rl[rehearsal]'"),
        (interpreter(numpy="1"), REQUIRED, {}, "pip install torch==2.13.0 ray==2.42.1"),
        # Beside torch_npu pip chooses no torch.
        (interpreter(torch_npu="2.5.1"), ["numpy<2"], {}, "pip install --no-deps 'numpy<2'"),
        # The extra pins another torch than that for which a stack's wheels are compiled.
        (interpreter(sys.executable), [f"flash_attn @ {WHEEL}"], {"extra": ""}, f"'flash_attn @ {WHEEL}'"),
    ],
)
def test_the_hint_is_the_command_that_installs_what_is_missing(
    found: Interpreter, required: list[str], options: dict[str, str], command: str
) -> None:
    with pytest.raises(HostError) as caught:
        require_packages(found, required, **options)
    assert str(caught.value.hint).partition("\nOr name")[0].endswith(command)
