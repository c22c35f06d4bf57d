"""Host packages from an index, such as torch, looked up before anything is downloaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.bounded import parse_toml
from npu_rl.common.errors import SourceError
from npu_rl.stack.pylocks.pylock_file import LockedPackage, locked_packages
from npu_rl.stack.pylocks.uv_program import index_hint, run_uv
from npu_rl.stack.sources.credentials import scrub

if TYPE_CHECKING:
    from npu_rl.stack.pylocks.pylock_targets import Target
    from npu_rl.stack.sources.pip_config import PipSettings

_NOT_THERE = "No solution found"
_LONGEST_REASON = 2000  # characters


@dataclass(frozen=True)
class PackageIndexes:
    """The indexes of pip's configuration, queried by uv for one target.

    Attributes:
        variables: uv's environment.
        folder: Where its input is written.
    """

    settings: PipSettings
    target: Target
    variables: Mapping[str, str]
    folder: Path

    def find(self, name: str, version: str) -> LockedPackage | None:
        """Return a package that has a wheel for the target; None if no index has one. Raises SourceError."""
        text = self._compiled(f"{name}=={version}", "--no-deps")
        return None if text is None else next(locked_packages(parse_toml(text)), None)

    def needs_cuda(self, package: LockedPackage) -> bool:
        """Return whether a package needs NVIDIA's packages: its build is for GPUs. Raises SourceError."""
        text = self._compiled(f"{package.name}=={package.version}")
        found = () if text is None else locked_packages(parse_toml(text))
        return any(one.name.startswith(("nvidia-", "cuda-")) for one in found)

    def _compiled(self, requirement: str, *words: str) -> str | None:
        (self.folder / "host.in").write_text(f"{requirement}\n", encoding="utf-8")
        target = self.target
        platform = f"{target.machine}-manylinux_{target.glibc.replace('.', '_')}"
        argv = ["pip", "compile", "host.in", "--quiet", "--no-header", "--only-binary", ":all:", *words]
        argv += ["--generate-hashes", "--format", "pylock.toml", "--python", sys.executable]
        argv += ["--python-version", target.python, "--python-platform", platform]
        done = run_uv(argv, self.variables, self.folder)
        if done.code == 0:
            return done.stdout
        reason = scrub(done.stderr, self.settings.secrets)[:_LONGEST_REASON]
        if _NOT_THERE in reason:
            return None
        raise SourceError(
            f"uv can't search for {requirement}",
            why=reason,
            hint=index_hint(reason, self.settings),
        )
