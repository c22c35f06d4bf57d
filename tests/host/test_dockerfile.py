"""The Dockerfile of a stack: its RUN lines, run in sh with paths below a folder and stand-ins for what a base has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import npu_rl
from tests.support import ROOT

DOCKERFILE = ROOT / "npu_rl/training/host/Dockerfile"
# Each notes its words; apt-get and yum lay what they install.
TOOL = '#!/bin/bash\necho "$(basename "$0") $*" >> {root}/log\n'
APT = TOOL + '[ "$1" = update ] || touch {root}/usr/lib/"$(uname -m)"-linux-gnu/libjemalloc.so.2\n'
YUM = TOOL + "touch {root}/usr/lib64/libjemalloc.so.2\n"
PYTHON = TOOL + 'for last; do :; done\nmkdir -p "$last/bin"; cp {root}/made/* "$last/bin/"\n'


def steps() -> list[str]:
    return re.findall(r"^RUN (?:.*\\\n)*.*$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder for the Dockerfile's paths, with a base's programs alone on PATH."""
    machine = os.uname().machine
    for name in ("usr/lib64", "usr/local/lib", f"usr/lib/{machine}-linux-gnu", "tmp", "etc", "build", "bin"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("bash", "rm", "ln", "uname", "touch", "mkdir", "cp", "basename"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    for place, text in (
        ("bin/python3", PYTHON),
        ("made/pip", TOOL),
        ("made/npu-rl", TOOL + 'mkdir -p "$NPU_RL_STORE"\n'),
    ):
        write_program(tmp_path, place, text)
    return tmp_path


def write_program(root: Path, place: str, text: str) -> None:
    (root / place).parent.mkdir(exist_ok=True)
    (root / place).write_text(text.format(root=root))
    (root / place).chmod(0o755)


def run(root: Path, step: str) -> subprocess.CompletedProcess[str]:
    """Run a step as docker does: by sh, with the values of ARG, and nothing else of this shell."""
    text = re.sub(r"(?<![\w$\"-])/(etc|opt|usr|tmp|var|build)/", rf"{root}/\1/", step[4:].replace("\\\n", ""))
    env = {
        "PATH": f"{root}/bin",
        "PYTHON": "python3",
        "MANIFEST": "today",
        "BASE": "registry.example/cann:8.5",
    }
    return subprocess.run(
        ["/bin/sh", "-c", text], env=env, cwd=root, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("system", "text"), [("apt-get", APT), ("yum", YUM)])
def test_every_step_runs(root: Path, system: str, text: str) -> None:
    write_program(root, f"bin/{system}", text)
    for wheel in ("apex-0.1-py3-none-any.whl", "torch_npu-2.9.0-py3-none-any.whl"):
        (root / "build" / wheel).touch()
    for step in steps():
        done = run(root, step)
        assert done.returncode == 0, f"{step}\n{done.stderr}"
    log = (root / "log").read_text().splitlines()
    assert [line.split()[0] for line in log if line.split()[0] != system] == [
        "python3",
        "python3",
        "pip",
        "npu-rl",
    ]
    words = log[-1].split()
    assert [words[number + 1] for number, word in enumerate(words) if word == "--manifest"] == ["today"]
    named = [Path(words[number + 1]).name for number, word in enumerate(words) if word == "--wheels"]
    assert named == ["apex-0.1-py3-none-any.whl", "torch_npu-2.9.0-py3-none-any.whl"]
    assert (root / "usr/local/lib/libjemalloc.so.2").exists()
    assert list((root / "tmp").iterdir()) == []
    assert (root / "etc/npu-rl-image").read_text() == "today on registry.example/cann:8.5\n"


def test_hadolint_has_no_finding() -> None:
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None and os.environ.get("NPU_RL_REQUIRE_PYPI") != "1":
        pytest.skip("hadolint is not installed (the extra `test` has it)")
    assert program is not None
    done = subprocess.run([program, "--no-color", DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_page_shows_it_and_it_installs_this_version() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    assert f"```dockerfile\n{text}```\n" in (ROOT / "docs/install.md").read_text(encoding="utf-8")
    assert f'"npu-rl[uv]=={npu_rl.__version__}"' in text
