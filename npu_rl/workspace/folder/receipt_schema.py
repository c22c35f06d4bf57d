"""Validation of receipts, since their paths are read, moved and removed, and their ids are passed to git.

The digest in a receipt detects damage. A receipt has thousands of files and every command reads it, so all paths are
checked at once where possible.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from npu_rl.common.yaml_documents import text_checks
from npu_rl.stack.git.objects import EXECUTABLE, FILE, GITLINK, SYMLINK
from npu_rl.stack.lock.lock_fields import check_upstream_path
from npu_rl.workspace.products.built_products import check_built

_MODES = {FILE, EXECUTABLE, SYMLINK, GITLINK}


def check_receipt(body: Mapping[str, Any], files: Mapping[str, Mapping[str, tuple[str, str]]]) -> None:
    """Raise ValueError, with the key, unless the roots, paths, modes and ids of a receipt are valid.

    Args:
        files: Those of the body, by root and path.
    """
    trees, commits = body["trees"], body["commits"]
    _require("code" in files and set(files) == set(trees) == set(commits), "not the same roots everywhere")
    for root, listing in files.items():
        folder, _, name = root.partition("/")
        is_root = root == "code" or (folder == "src" and text_checks.check_name(name) == name)
        _require(is_root, f"{root!r} is not a root of a workspace")
        _check_paths(root, listing)
        _require({mode for mode, _ in listing.values()} <= _MODES, f"{root}: invalid file mode")
        ids = [trees[root], commits[root], *(oid for _, oid in listing.values())]
        digits = "".join(ids)
        is_hex = bytes.fromhex(digits).hex() == digits  # ten times as fast as looking at each
        _require(is_hex and set(map(len, ids)) == {40}, f"{root}: not an object id")
    check_built(body["setup"].get("built", []), files)


def _require(fine: bool, what: str) -> None:
    if not fine:
        raise ValueError(what)


def _check_paths(root: str, paths: Collection[str]) -> None:
    """Check paths as `check_upstream_path` does, and that the system can encode them."""
    together = "/" + "/ /".join(paths) + "/"
    together.encode("utf-8", "surrogateescape")  # UnicodeEncodeError is a ValueError
    _require("\0" not in together, f"{root}: a path contains a NUL")
    _require(not paths or "//" not in together, f"{root}: a path has an empty component")
    for path in [path for path in paths if "/." in path or path[0] == "."]:  # few
        check_upstream_path(path)
