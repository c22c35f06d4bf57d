"""The installed command, and a workspace it may judge."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import ROOT, clean_env, run_program
from tests.workspace.conftest import paths, stack, template

__all__ = ["paths", "stack", "template"]


@dataclass(frozen=True)
class Installed:
    """npu-rl as an installation has it; `program` is what a person calls."""

    program: Path

    def run(
        self, *args: str | Path, env: Mapping[str, str], cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        return run_program([self.program, *args], env=env, cwd=cwd, timeout=60)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A virtual environment, in a folder with a space, with these sources and the console script that pip writes."""
    home = tmp_path_factory.mktemp("an odd place") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (site,) = home.glob("lib/python3*/site-packages")
    (site / "npu_rl.pth").write_text("\n".join([str(ROOT), *packages()]) + "\n")
    program = home / "bin" / "npu-rl"
    program.write_text(
        f"""#!/bin/sh
'''exec' "{str(home).replace("$", chr(92) + "$")}/bin/python" "$0" "$@"
' '''
import sys
from npu_rl.cli import program
sys.exit(program())
"""
    )
    program.chmod(0o755)
    return Installed(program)


def packages() -> list[str]:
    """The folders in which these tests find what npu-rl needs."""
    return [entry for entry in sys.path if Path(entry).name == "site-packages"]


def bare_env(tmp_path: Path) -> dict[str, str]:
    """As `clean_env`, but without PYTHONPATH: what is installed has to be found as it is."""
    env = clean_env(tmp_path)
    del env["PYTHONPATH"]
    return env
