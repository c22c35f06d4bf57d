"""Build products listed in a receipt, and their current state."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import hash_file
from npu_rl.stack.lock import lock_fields as t
from npu_rl.stack.lock.lock_fields import UnexpectedShape, build, check_upstream_path, plain
from npu_rl.stack.lock.lock_model import Lock, LockedBuild, LockedComponent

BUILT, STALE, MODIFIED, MISSING = "built here", "stale", "modified", "missing"
_BUILD = re.compile("build-[0-9a-f]{12}")


@dataclass(frozen=True)
class BuiltProduct:
    """One file made by a build.

    Attributes:
        path: Its path in the workspace: code/... or src/NAME/...
        executable: Whether its owner may execute it.
        source: Tree id of the component that it was built from.
        command: Digest of the commands that built the component (`command_digest`).
        python: The interpreter's version that built it, such as 3.11.7.
    """

    path: str
    component: str
    sha256: t.Sha256
    size: int
    executable: bool
    source: str
    command: str
    python: str

    @property
    def root(self) -> str:
        """The product's root: code or src/NAME."""
        return _split(self.path)[0]

    @property
    def path_in_root(self) -> str:
        """The product's path in the root."""
        return _split(self.path)[1]

    def is_current(self, lock: Lock) -> bool:
        """Return whether the product was built from the locked sources and commands."""
        component = lock.components.get(self.component)
        if component is None:
            return False
        return (self.source, self.command) == (component.result, command_digest(component.build))


@dataclass(frozen=True)
class BuildOutcome:
    """The products of a component that `setup --build` built, and whether they existed already."""

    component: str
    products: tuple[BuiltProduct, ...]
    already: bool


def _split(path: str) -> tuple[str, str]:
    parts = path.split("/")
    count = 2 if parts[0] == "src" else 1
    return "/".join(parts[:count]), "/".join(parts[count:])


def command_digest(steps: Iterable[LockedBuild]) -> str:
    """Return the SHA-256 of a component's build commands, ignoring whether they are proven."""
    commands = [{key: value for key, value in plain(step).items() if key != "proven"} for step in steps]
    return hashlib.sha256(json.dumps(commands, sort_keys=True).encode()).hexdigest()


def built_products(setup: Mapping[str, Any]) -> dict[str, BuiltProduct]:
    """Return the products that a checked receipt lists in `setup`, by path."""
    return {one["path"]: BuiltProduct(**one) for one in setup.get("built", [])}


def check_built(given: object, roots: Iterable[str]) -> None:
    """Raise ValueError unless a receipt's list of products is valid: its paths are read, moved and removed."""
    try:
        products = build(tuple[BuiltProduct, ...], given, "setup.built")
    except UnexpectedShape as error:
        raise ValueError(str(error)) from error
    known = set(roots)
    for product in products:
        if product.root not in known:
            raise ValueError(f"setup.built: {product.root!r} is not a root")
        check_upstream_path(product.path_in_root)
    if len({product.path for product in products}) != len(products):
        raise ValueError("setup.built: a path is listed twice")


def state_on_disk(home: Path, product: BuiltProduct) -> str:
    """Return the state of a product: built, modified or missing. Raises OSError if it can't be read."""
    place = home / product.path
    if not os.path.lexists(place):
        return MISSING
    if place.is_symlink() or not place.is_file():
        return MODIFIED
    return BUILT if file_facts(place) == (product.sha256, product.size, product.executable) else MODIFIED


def lasting_products(
    home: Path,
    products: Iterable[BuiltProduct],
    lock: Lock,
    files: Mapping[str, Mapping[str, tuple[str, str]]],
) -> list[BuiltProduct]:
    """Return the products that a workspace with this lock keeps.

    These are the products of each component that has all of them, unmodified and built from its sources and commands.

    Args:
        files: The files of that workspace, by root.
    """
    fine = {
        product: product.is_current(lock)
        and product.root in files
        and product.path_in_root not in files[product.root]
        and state_on_disk(home, product) == BUILT
        for product in products
    }
    incomplete = {product.component for product, lasts in fine.items() if not lasts}
    return [product for product in fine if product.component not in incomplete]


def file_facts(path: Path) -> tuple[str, int, bool]:
    """Return a file's SHA-256, size and owner-executable bit. Raises OSError."""
    status = path.stat()
    return hash_file(path), status.st_size, bool(status.st_mode & 0o100)


def place_of(name: str, component: LockedComponent, path: str) -> str:
    """Return the workspace path of a component's file: in the code tree if taken, else in the full checkout."""
    for take in component.take:
        if take.path == ".":
            rest = path
        elif path.startswith(f"{take.path}/"):
            rest = path[len(take.path) + 1 :]
        else:
            continue
        return "/".join(("code", *([] if take.to == "." else [take.to]), rest))
    return f"src/{name}/{path}"


def build_mark(folder: str) -> str:
    """Return the mark of a build's processes (`common/process.py`), from the name of its folder in `.npu-rl`."""
    return folder.replace("-", "")


def stop_killed_builds(hidden: Path) -> None:
    """End processes left by killed builds. The workspace must be locked. Raises HostError if one can't be ended."""
    for place in hidden.glob("build-*"):
        if _BUILD.fullmatch(place.name):
            from npu_rl.common.process import stop_remaining

            stop_remaining(build_mark(place.name))
