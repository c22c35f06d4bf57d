"""Validation of receipts, since their paths are read, moved and removed, and their ids are passed to git.

The digest in a receipt detects damage, not forgery. A receipt has thousands of files and every command reads it, so
all paths are checked at once where possible.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar, cast

from npu_rl.common.yaml_documents import text_checks
from npu_rl.stack.git.objects import EXECUTABLE, FILE, GITLINK, SYMLINK
from npu_rl.stack.lock.lock_fields import check_upstream_path
from npu_rl.workspace.products.built_products import check_built

_Kind = TypeVar("_Kind")

_MODES = {FILE, EXECUTABLE, SYMLINK, GITLINK}
_STATES = ("in place", "superseded")  # states of hunks in a locked tree
_TEXTS = ("npu_rl", "manifest", "python", "activate")
_MAXIMUM_TIME = 253402300799  # the last second of the year 9999


def check_receipt(body: Mapping[str, Any], files: Mapping[str, Mapping[str, tuple[str, str]]]) -> None:
    """Raise ValueError, with the key, unless the types and values of a receipt are valid.

    Args:
        files: Those of the body, by root and path.
    """
    for root in files:
        _require(root == "code" or _is_source(root), f"{root!r} is not a root of a workspace")
        _check_listing(root, files[root])
    for key in ("trees", "commits"):
        ids = body[key]
        _require(isinstance(ids, dict) and set(ids) == set(files), f"{key}: not the same roots as in files")
        _require(all(_is_hex(i, 40) for i in ids.values()), f"{key}: not an object id")
    _require("code" in files, "files: the root `code` is missing")
    _check_hunks(body["hunks"], files)
    _check_texts(body["texts"])
    _check_setup(body["setup"])
    check_built(body["setup"].get("built", []), files)


def _typed(value: object, kind: type[_Kind], what: str) -> _Kind:
    _require(isinstance(value, kind), what)
    return cast("_Kind", value)


def _require(fine: bool, what: str) -> None:
    if not fine:
        raise ValueError(what)


def _is_source(root: str) -> bool:
    folder, _, name = root.partition("/")
    return folder == "src" and text_checks.check_name(name) == name


def _is_hex(value: object, length: int) -> bool:
    return isinstance(value, str) and len(value) == length and _is_hex_text(value)


def _is_hex_text(digits: str) -> bool:
    return bytes.fromhex(digits).hex() == digits  # ten times as fast as looking at each


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _check_listing(root: str, listing: Mapping[str, tuple[str, str]]) -> None:
    _check_paths(root, listing)
    modes, ids = {m for m, _ in listing.values()}, [i for _, i in listing.values()]
    _require(modes <= _MODES, f"{root}: invalid file mode")
    _require(set(map(len, ids)) <= {40} and _is_hex_text("".join(ids)), f"{root}: not an object id")


def _check_paths(root: str, paths: Collection[str]) -> None:
    """Check paths as `check_upstream_path` does, and that the system can encode them."""
    together = "/" + "/ /".join(paths) + "/"
    together.encode("utf-8", "surrogateescape")  # UnicodeEncodeError is a ValueError
    _require("\0" not in together, f"{root}: a path contains a NUL")
    _require(not paths or "//" not in together, f"{root}: a path has an empty component")
    for path in [path for path in paths if "/." in path or path[0] == "."]:  # few
        check_upstream_path(path)


def _check_hunks(given: object, roots: Collection[str]) -> None:
    hunks = _typed(given, list, "hunks: expected a list")
    for number, record in enumerate(hunks):
        _require(isinstance(record, dict) and record["root"] in roots, f"hunks[{number}]: unknown root")
        texts = (record["file"], record["patch"], record["component"])
        fine = all(isinstance(text, str) for text in texts) and record["state"] in _STATES
        fine = fine and _is_count(record["line"]) and _is_count(record["hunk"])
        _require(fine and _has_lines(record), f"hunks[{number}]: not a valid hunk record")
        text_checks.check_name(record["component"])
        record["patch"].encode("utf-8", "surrogateescape")
    _check_paths("hunks", {record["file"] for record in hunks})


def _has_lines(record: Mapping[str, Any]) -> bool:
    """Return whether the lines, the context and the counts in a hunk record are consistent."""
    before, lines, after, copies = (record[key] for key in ("before", "lines", "after", "copies"))
    if not all(isinstance(part, list) for part in (before, lines, after, copies)):
        return False
    if not all(line is None or isinstance(line, str) for line in (*before, *after)):
        return False
    if not all(
        isinstance(pair, list) and len(pair) == 2 and pair[0] in ("+", "-", " ") and isinstance(pair[1], str)
        for pair in lines
    ):
        return False
    if record["state"] == "superseded":
        return all(map(_is_count, copies))
    own = [pair[0] != " " for pair in lines]
    changes = sum(is_own and not above for is_own, above in zip(own, [False, *own], strict=False))
    pieces = 1 + (changes if changes > 1 else 0)
    return len(copies) == 2 + pieces and all(map(_is_count, copies))


def _check_texts(texts: object) -> None:
    for text in _typed(texts, dict, "texts: expected a mapping").values():
        _typed(text, str, "texts: expected text").encode("utf-8", "surrogateescape")


def _check_setup(given: object) -> None:
    setup = _typed(given, dict, "setup: expected a mapping")
    for key in _TEXTS:
        _require(isinstance(setup.get(key, ""), str), f"setup.{key}: expected text")
    made = setup.get("made", 0)
    _require(_is_count(made) and made <= _MAXIMUM_TIME, "setup.made: expected a time in seconds")
    _require("lock" not in setup or _is_hex(setup["lock"], 64), "setup.lock: expected a digest")
