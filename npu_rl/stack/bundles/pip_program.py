"""pip of npu-rl's own interpreter, with the caller's configuration, to download and build the wheels of a bundle."""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from npu_rl.common.errors import HostError
from npu_rl.common.masking import without_passwords
from npu_rl.common.process import CompletedCommand, run_quietly
from npu_rl.stack.pylocks.pylock_targets import Target

_TIMEOUT = 7200.0  # seconds
_SHOWN = 2000  # characters of what pip printed
_QUIET = ("--quiet", "--no-input", "--disable-pip-version-check")
# The oldest glibc of each machine's wheels, and what such wheels were called before they had its number.
_OLDEST_GLIBC = {"x86_64": 5, "aarch64": 17}
_OLD_NAMES = {"x86_64": ("manylinux2014", "manylinux2010", "manylinux1"), "aarch64": ("manylinux2014",)}


def run_pip(words: Sequence[str], folder: Path) -> CompletedCommand:
    """Run pip in a folder.

    Raises:
        HostError: If npu-rl's interpreter lacks pip, or if it does not end.
        OSError: If the disk is full.
    """
    if importlib.util.find_spec("pip") is None:
        raise HostError(
            "npu-rl's interpreter has no pip",
            where=sys.executable,
            why="A bundle brings npu-rl's own packages, which pip downloads.",
            hint=f"Install it: {sys.executable} -m ensurepip",
        )
    # Isolated: what PYTHONPATH names has no part in it.
    done = run_quietly([sys.executable, "-I", "-m", "pip", *words, *_QUIET], os.environ, folder, _TIMEOUT)
    if done.code and f"[Errno {errno.ENOSPC}]" in done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    return done


def pip_errors(done: CompletedCommand) -> str | None:
    """Return the lines of pip's output with the reason of its failure, without passwords, or None."""
    printed = without_passwords(done.stderr.strip())
    errors = [line for line in printed.splitlines() if line.startswith("ERROR: ")]
    return "\n".join(errors)[-_SHOWN:] or printed[-_SHOWN:] or None


def download_words(target: Target, folder: Path, *, offline: bool = False) -> list[str]:
    """Return pip's arguments to download wheels for a target without running any of their code.

    Args:
        offline: Whether to query no index; the folders of find-links remain.
    """
    version = target.python
    words = ["download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    words += ["--no-index"] if offline else []
    words += ["--python-version", version, "--implementation", "cp"]
    for abi in (f"cp{version.replace('.', '')}", "abi3", "none"):
        words += ["--abi", abi]
    for platform in platforms(target):
        words += ["--platform", platform]
    return words


def platforms(target: Target) -> list[str]:
    """Return the platform tags of wheels that fit a target, the best first."""
    newest = int(target.glibc.partition(".")[2])
    numbered = [f"manylinux_2_{minor}" for minor in range(newest, _OLDEST_GLIBC[target.machine] - 1, -1)]
    return [f"{name}_{target.machine}" for name in (*numbered, *_OLD_NAMES[target.machine], "linux")]
