"""Placement of a build's products, all or none, even if killed.

The receipt that lists them is what counts. Until it is written, a journal names what has to be undone; from then on
only the journal has to go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import parse_json
from npu_rl.common.confined_changes import Confined
from npu_rl.common.errors import WorkspaceError
from npu_rl.common.yaml_documents.text_checks import check_name
from npu_rl.workspace.products.built_products import BUILT, BuiltProduct, check_built, state_on_disk

_MAXIMUM_SIZE = 16 << 20
_JOURNAL = "placing.json"
_REPLACED = "replaced"  # in the build's folder: products of an earlier build


def journal_path(home: Path) -> Path:
    """Return the path of the journal of a workspace."""
    return home / ".npu-rl" / _JOURNAL


def place_products(
    home: Path,
    folder: Path,
    new: Mapping[Path, BuiltProduct],
    old: Sequence[BuiltProduct],
    write_receipt: Callable[[], None],
    read_listed: Callable[[], Mapping[str, BuiltProduct]],
) -> None:
    """Move a build's products into the workspace, replacing an earlier build's, and write the receipt.

    After any error everything is as before.

    Args:
        folder: The build's own folder in `.npu-rl`.
        new: The products by the files in that folder.
        old: The products of the receipt that these replace.
        write_receipt: Writes the receipt that lists the new ones, atomically.
        read_listed: Returns the products that the receipt lists.

    Raises:
        WorkspaceError: If there is something in a product's place, or a link on the way.
        OSError: If a file can't be moved.
    """
    inside = Confined(home)
    replaced = {product.path for product in old}
    for product in new.values():
        if product.path not in replaced and inside.exists(home / product.path):
            raise WorkspaceError(
                "A file is in the way of a product",
                where=str(home / product.path),
                hint="Move it away, and build again.",
            )
    body = {
        "folder": folder.name,
        "new": [product.to_json() for product in new.values()],
        "old": sorted(replaced),
    }
    inside.write(journal_path(home), json.dumps(body).encode(), sync=True)
    try:
        for product in old:
            if inside.exists(home / product.path):
                inside.move(home / product.path, folder / _REPLACED / product.path)
        for source, product in new.items():
            inside.move(source, home / product.path)
        write_receipt()
    except BaseException:
        undo_interrupted(home, read_listed())
        raise
    inside.remove(journal_path(home))


def _undo(home: Path, folder: Path, new: Sequence[BuiltProduct], old: Sequence[str]) -> None:
    """Remove the new products unless they were modified, and move the old ones back."""
    inside = Confined(home)
    for product in new:
        is_earlier = product.path in old and not inside.exists(folder / _REPLACED / product.path)
        if not is_earlier and state_on_disk(home, product) == BUILT:
            inside.remove(home / product.path)
            _remove_empty(inside, home, Path(product.path).parent)
    for path in old:
        if inside.exists(folder / _REPLACED / path):
            inside.move(folder / _REPLACED / path, home / path)


def _remove_empty(inside: Confined, home: Path, folder: Path) -> None:
    """Remove folders that have become empty. They are a build's, since git has no empty folders."""
    while len(folder.parts) > 1 and inside.is_folder(home / folder) and not any((home / folder).iterdir()):
        inside.remove(home / folder)
        folder = folder.parent


def settle_killed_builds(home: Path, read_listed: Callable[[], Mapping[str, BuiltProduct]]) -> bool:
    """End processes left by killed builds, and undo their moves. Returns whether there were any moves.

    The workspace must be locked. Their folders remain, which the caller removes.

    Raises:
        WorkspaceError: If the journal is damaged.
        HostError: If a process can't be ended.
    """
    inside, hidden = Confined(home), home / ".npu-rl"
    if inside.is_folder(hidden):
        for place in hidden.iterdir():
            if is_build_folder(place.name):
                from npu_rl.common.process import stop_remaining

                stop_remaining(build_mark(place.name))
    return inside.exists(journal_path(home)) and undo_interrupted(home, read_listed())


def undo_interrupted(home: Path, listed: Mapping[str, BuiltProduct]) -> bool:
    """Undo a killed command's moves unless its receipt was written. Returns whether there were any.

    The workspace must be locked.

    Args:
        listed: The products that the receipt lists.

    Raises:
        WorkspaceError: If the journal is damaged.
    """
    path, inside = journal_path(home), Confined(home)
    try:
        body = parse_json(inside.read(path, _MAXIMUM_SIZE))
        products, folder, old = _checked(body)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WorkspaceError(
            "The journal of an interrupted build can't be read",
            where=str(path),
            why=str(error),
            hint="Set up another workspace.",
        ) from error
    if any(listed.get(product.path) != product for product in products):
        _undo(home, home / ".npu-rl" / folder, products, old)
    inside.remove(path)
    return True


def _checked(body: Any) -> tuple[list[BuiltProduct], str, list[str]]:
    """Parse a journal. Raises ValueError, KeyError or TypeError for paths that builds don't use."""
    roots = {_root(one["path"]) for one in body["new"]} | {_root(path) for path in body["old"]}
    check_built(body["new"], roots)
    folder, old = body["folder"], body["old"]
    if not isinstance(folder, str) or not is_build_folder(folder):
        raise ValueError("it names a folder that no build uses")
    for place in old:  # what would be moved has to be a place of a product, too
        check_built([{**body["new"][0], "path": place}], roots)
    return [BuiltProduct(**one) for one in body["new"]], folder, list(old)


def _root(path: Any) -> str:
    """Return the root of a path: code, or src/NAME with a valid name. Raises ValueError for others."""
    if not isinstance(path, str):
        raise ValueError("a path is not a text")
    folder, _, rest = path.partition("/")
    if folder == "code":
        return folder
    if folder != "src":
        raise ValueError(f"{path[:80]!r} is not in a root of a workspace")
    return f"src/{check_name(rest.partition('/')[0])}"


def is_build_folder(name: str) -> bool:
    """Return whether a name in `.npu-rl` belongs to a build's folder."""
    head, _, digits = name.partition("-")
    return head == "build" and len(digits) == 12 and not digits.strip("0123456789abcdef")


def build_mark(name: str) -> str:
    """Return the mark of a build's processes (`common/process.py`), from its folder's name."""
    return name.replace("-", "")
