"""The mark of an installation that has begun: the packages that uv may have left half installed.

After a kill uv counts a package as installed once its metadata is there: of 25 kills of uv 0.13.9, a second `uv pip
install` reported success 18 times with 2 to 2,404 files missing. With `--reinstall` none was missing in 55.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from npu_rl.common.bounded import read_file

_MARK = ".npu-rl-install"
_LARGEST = 1 << 20  # bytes


def unfinished_packages(root: Path) -> frozenset[str]:
    """Return the packages of an unfinished installation into the environment at `root`. Raises OSError, ValueError."""
    try:
        return frozenset(read_file(root / _MARK, _LARGEST).decode("utf-8", "replace").split())
    except FileNotFoundError:
        return frozenset()


def begin(root: Path, packages: Iterable[str]) -> None:
    """Write the mark, before uv starts. Raises OSError."""
    (root / _MARK).write_text("".join(f"{name}\n" for name in sorted(packages)), encoding="utf-8")


def end(root: Path) -> None:
    """Remove the mark. Raises OSError."""
    (root / _MARK).unlink(missing_ok=True)
