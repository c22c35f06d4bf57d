"""The RUN lines of a Dockerfile, run in sh: paths below a folder, and stand-ins for what the base image has.

The whole build, in a real root with real packages, is in docs/install.md; quickstart.Dockerfile is the file as it was
printed when that build was recorded.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import npu_rl
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.training.container.dockerfile import dockerfile

# Each writes down its words; apt-get and yum lay what they install.
TOOL = '#!/bin/bash\necho "$(basename "$0") $*" >> {log}\n'
APT = TOOL + '[ "$1" = update ] || touch {root}/usr/lib/"$(uname -m)"-linux-gnu/libjemalloc.so.2\n'
YUM = TOOL + "touch {root}/usr/lib64/libjemalloc.so.2\n"
NPU_RL = TOOL + '[ "$1" != setup ] || mkdir -p "$NPU_RL_STORE"\n[ "$1" != requirements ] || echo one==1\n'
PYTHON = (
    TOOL
    + 'for last; do :; done\n[ "$2" != venv ] || {{ mkdir -p "$last/bin"; cp {root}/made/* "$last/bin/"; }}\n'
)


@dataclass
class MadeRoot:
    """A folder for the paths of a Dockerfile. own: the programs are all in its bin, as with a system of its own."""

    root: Path
    own: bool = False

    def run(self, step: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a step as docker does: with sh, ARG's values, and nothing of this shell."""
        text = step.removeprefix("RUN ").replace("\\\n", "")
        text = re.sub(r"(?<![\w$\"-])/(etc|opt|usr|tmp|var|wheels)/", rf"{self.root}/\1/", text)
        return subprocess.run(
            ["/bin/sh", "-c", text],
            env={
                "PATH": f"{self.root}/bin{'' if self.own else ':/usr/bin:/bin'}",
                "BASE_PYTHON": "base-python",
                "BASE": "registry.example/cann:8.2",
                **env,
            },
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )

    def add(self, folder: str, name: str, text: str) -> None:
        place = self.root / folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text.format(root=self.root, log=self.root / "log"))
        place.chmod(0o755)

    @property
    def log(self) -> list[str]:
        place = self.root / "log"
        return place.read_text().splitlines() if place.exists() else []


@pytest.fixture
def made(tmp_path: Path) -> MadeRoot:
    for name in ("usr/lib64", "usr/local/lib", "tmp", "opt", "etc", "var/lib/apt/lists"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / f"usr/lib/{machine()}-linux-gnu").mkdir(parents=True)
    root = MadeRoot(tmp_path)
    root.add("bin", "base-python", PYTHON)
    root.add("made", "pip", TOOL)
    root.add("made", "npu-rl", NPU_RL)
    return root


def machine() -> str:
    return subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()


def steps(manifest: str) -> list[str]:
    text = dockerfile(load_manifest(manifest), manifest)
    return re.findall(r"^RUN (?:.*\\\n)*.*$", text, re.MULTILINE)


@pytest.mark.parametrize(("system", "text"), [("apt-get", APT), ("yum", YUM)])
def test_every_step_of_a_bundled_manifest_runs(made: MadeRoot, system: str, text: str) -> None:
    made.add("bin", system, text)
    if system == "yum":
        hide_apt(made)
    for step in steps("deepseek-v3-cann"):
        done = made.run(step)
        assert done.returncode == 0, f"{step}\n{done.stderr}"
    names = [line.split()[0] for line in made.log]
    assert system in names
    expected = ["pip", "npu-rl", "pip", "npu-rl", "pip", "pip"]  # npu-rl, its tree, torch, the set, apex
    assert [name for name in names if name not in (system, "base-python")] == expected
    assert (made.root / "usr/local/lib/libjemalloc.so.2").exists()
    assert list((made.root / "tmp").iterdir()) == []
    named = (made.root / "etc/npu-rl-image").read_text()
    assert named == "npu-rl-deepseek-v3-cann from registry.example/cann:8.2\n"


def hide_apt(made: MadeRoot) -> None:
    """Leave a PATH that has no apt-get, on a Debian too."""
    for name in ("bash", "rm", "ln", "uname", "touch", "mkdir", "cp", "basename"):
        (made.root / "bin" / name).symlink_to(str(shutil.which(name)))
    made.own = True


def test_a_system_without_jemalloc_fails_at_once(made: MadeRoot) -> None:
    made.add("bin", "apt-get", TOOL)
    assert made.run(steps("today")[0]).returncode != 0


def test_another_python_in_the_base_is_named_before_anything_is_made(made: MadeRoot) -> None:
    step = next(step for step in steps("deepseek-v3-cann") if "assert v ==" in step)
    step = step.replace("(3, 10)", "(3, 1)")
    done = made.run(step, BASE_PYTHON=sys.executable)
    assert done.returncode != 0
    assert f"Python of the base image: {tuple(sys.version_info[:2])}" in done.stderr
    assert list((made.root / "opt").iterdir()) == []


def test_a_set_that_cannot_be_printed_installs_nothing(made: MadeRoot) -> None:
    made.add("opt/npu-rl/bin", "npu-rl", TOOL + "exit 1\n")
    made.add("opt/training/bin", "pip", TOOL)
    step = next(step for step in steps("today") if "--require-hashes" in step)
    assert made.run(step).returncode != 0
    assert [line.split()[0] for line in made.log] == ["npu-rl"]


def test_the_instructions_of_the_quickstart_are_those_that_were_built() -> None:
    """After a change build it again, with buildah or docker, and correct docs/install.md."""
    built = Path(__file__).with_name("quickstart.Dockerfile").read_text()
    printed = dockerfile(load_manifest("quickstart"), "quickstart", "3.11")
    printed = printed.replace(npu_rl.__version__, "0.2.0")
    assert instructions(printed) == instructions(built)


def instructions(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]
