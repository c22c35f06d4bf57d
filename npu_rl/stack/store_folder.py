"""The store's folder, which is created, adopted or refused before anything in it changes.

`NPU_RL_STORE` is a path that a user types, so it may name a folder with files of theirs. Only a folder that bears the
mark is a store; the mark is written into an empty folder.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from npu_rl.common.environment_variables import STORE
from npu_rl.common.errors import HostError
from npu_rl.common.folder_owner import require_own

MARK = "npu-rl-store.json"
LOCK = "in-use.lock"
FOLDERS = ("units", "files", "tmp")
_MARK_TEXT = json.dumps(
    {"npu-rl": "store", "version": 1, "about": "npu-rl removes files in units, files and tmp."}
)
_RANDOM = "[0-9a-f]{16}"
_FORMS = {
    "units": re.compile("[0-9a-f]{40}"),
    "files": re.compile("[0-9a-f]{64}"),
    "tmp": re.compile(rf"q-{_RANDOM}(\.lock)?|(gone|new)-{_RANDOM}|\.[0-9a-f]{{60}}\.[0-9a-f]{{12}}"),
}
_IN_A_UNIT = re.compile(
    r"unit\.json|objects(/(info|pack|[0-9a-f]{2}(/[0-9a-f]{38})?))?"
    r"|objects/pack/(pack-[0-9a-f]{40}\.(pack|idx|rev|keep|bitmap|mtimes|promisor)|multi-pack-index|tmp_[a-z]+_\w{6})"
    r"|objects/info/(packs|commit-graph)"
)


def is_own_name(folder: str, name: str) -> bool:
    """Return whether a name has the form of npu-rl's own names in this folder of the store."""
    return _FORMS[folder].fullmatch(name) is not None


def first_foreign_in_unit(unit: Path) -> Path | None:
    """Return a path in a unit's folder that is neither npu-rl's nor git's, or None."""
    paths = unit.rglob("*") if unit.is_dir() and not unit.is_symlink() else ()
    return next((path for path in paths if not _IN_A_UNIT.fullmatch(path.relative_to(unit).as_posix())), None)


def make_store_folder(root: Path) -> None:
    """Create the folder of a store, or verify that it is one.

    Raises:
        HostError: If it has other files, or is another user's and `safe_folders` does not list it. Nothing has
            changed then.
        OSError: For errors of the disk.
    """
    require_own("store", root, hint=f"Choose another folder by {STORE.name}.")
    root.mkdir(parents=True, exist_ok=True)
    mark = root / MARK
    foreign = min((path.name for path in root.iterdir()), default=None) if not mark.exists() else None
    if foreign is not None and not mark.exists():  # nor has another process made it meanwhile
        command = f"export {STORE.name}={shlex.quote(str(root / 'npu-rl-store'))}"
        raise HostError(
            "The folder is not a store of npu-rl, and it is not empty",
            where=str(root),
            why=f"It has {foreign}. npu-rl removes files in its store, so it takes only a folder that was empty.",
            hint=f"Use a folder of its own: {command}",
        )
    if not mark.exists():
        mark.write_text(f"{_MARK_TEXT}\n", encoding="utf-8")
    for name in FOLDERS:
        (root / name).mkdir(exist_ok=True)
