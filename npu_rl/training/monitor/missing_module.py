"""The origin of a module that can't be imported: a part of its tree, a package of its locks, or neither."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bounded import read_file
from npu_rl.stack.requirements.bound_check import HOST_PACKAGES

_NAME = re.compile(rb'^name = "([^"]+)"', re.M)


@dataclass(frozen=True)
class Stack:
    """The manifest and the code folder of a run."""

    manifest: Path
    code: Path

    def look_up(self, module: str) -> tuple[str, str]:
        """Return the cause and the fix of a module that is missing."""
        top = module.partition(".")[0]
        if (self.code / top).exists():
            cause = f"The tree has {top} without {module}: the code that imports it is for another version."
            return (
                cause,
                "Leave out the setting that leads to that code; `npu-rl verify` shows changes of the tree.",
            )
        if _plain(top) in self._packages():
            cause = f"The training interpreter lacks {top}, a package of this stack."
            fix = (
                "Install its packages with `npu-rl setup --install` and the options of your setup, or pass an"
            )
            return cause, f"{fix} interpreter that has them: --python PATH."
        cause = f"The training interpreter lacks {top}, and no lock of {self.manifest.stem} has a package of that name."
        fix = f"Leave out the setting that leads to that code, or install {top}, which `--install` does not bring."
        return cause, fix

    def _packages(self) -> set[str]:
        """Return the names in the stack's locks, and their parts: hydra of hydra-core, yaml of PyYAML."""
        locks = self.manifest.parent.glob(f"pylock.{self.manifest.stem}-*.toml")
        names = [name.decode() for lock in locks for name in _NAME.findall(read_file(lock))]
        return {
            _plain(form)
            for name in (*names, *HOST_PACKAGES)
            for form in (name, *name.split("-"), name.removeprefix("py"))
        }


def _plain(name: str) -> str:
    return re.sub(r"[-_.]", "", name).lower()
