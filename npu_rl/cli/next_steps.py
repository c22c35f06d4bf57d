"""The last line of a long command: what to run next, and what the same command does after an interruption."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.cli.show import tell

if TYPE_CHECKING:
    from npu_rl.stack.lock.lock_model import Lock

GOES_ON = "Stopped; the same command continues where it stopped."
KEEPS_DOWNLOADS = "Stopped; the same command continues with what it has fetched."
STARTS_OVER = "Stopped; nothing was changed. The same command starts over."

_after_interruption = ""


def if_interrupted(text: str) -> None:
    """Set what is printed if a signal ends this command; "" for nothing."""
    global _after_interruption
    _after_interruption = text


def after_interruption() -> str:
    """Return what `if_interrupted` set."""
    return _after_interruption


def tell_next(*words: str | Path, workspace: Path | None = None) -> None:
    """Print the next command on standard error, as a shell reads it.

    Args:
        words: The command's words after `npu-rl`.
        workspace: The folder that --workspace named, if it did.
    """
    tell_last(f"Next: {command_line(*words, workspace=workspace)}")


def tell_last(line: str) -> None:
    """Print a line on standard error after the result, also where both streams are one pipe or file."""
    sys.stdout.flush()
    tell(line)


def command_line(*words: str | Path, workspace: Path | None = None) -> str:
    """Return a command of npu-rl as a shell reads it."""
    at = () if workspace is None else ("--workspace", workspace)
    return shlex.join(map(str, ("npu-rl", *words, *at)))


def manifests_of(lock: Lock) -> list[str]:
    """Return the names of a lock's manifest and of those that it extends, for `bundled_recipe_for`."""
    return [lock.manifest, *(Path(name.removeprefix("bundled:")).stem for name in lock.manifest_files)]


def bundled_recipe_for(manifests: Sequence[str]) -> str | None:
    """Return the name of a bundled recipe for the first of these manifests that has one.

    The files are searched as text: `setup` of an up-to-date workspace imports no YAML parser.
    """
    from npu_rl.common.bundled import bundled_recipes

    texts = {name: path.read_text(encoding="utf-8") for name, path in bundled_recipes().items()}
    for manifest in manifests:
        line = re.compile(rf"^manifest: {re.escape(manifest)}$", re.MULTILINE)
        found = [name for name, text in texts.items() if line.search(text)]
        if found:
            return min(found, key=len)
    return None
