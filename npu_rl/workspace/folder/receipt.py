"""The receipt of a workspace: its files and hunks, for verification without a git repository."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import parse_json, read_file, read_json
from npu_rl.common.errors import LockError, WorkspaceError
from npu_rl.common.printable import one_line
from npu_rl.common.yaml_documents import text_checks
from npu_rl.stack.git.objects import EXECUTABLE, FILE, GITLINK, SYMLINK
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_fields import check_upstream_path
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.workspace.folder.built_products import check_built
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths

FilesByRoot = Mapping[str, Mapping[str, tuple[str, str]]]  # mode and blob id by path, by "code" or "src/NAME"

RECEIPT_FORMAT = 1
MAXIMUM_SIZE = 256 * 1024 * 1024  # 2,644 files take 0.4 MB
_HEAD = '{"digest":"'
_DIGEST_END = len(_HEAD) + 64


@dataclass(frozen=True)
class Receipt:
    """The receipt of a workspace.

    Attributes:
        files: Mode and blob id by path, by root ("code", "src/NAME").
        trees: Tree id by root.
        commits: Commit id by root.
        hunks: Hunk records for verify.
        texts: Patch texts by SHA-256.
        setup: How the workspace was set up; `lock` is the lock's digest.
        digest: SHA-256 of the text it was read from, without the digest itself; empty if it was not read.
    """

    files: dict[str, dict[str, tuple[str, str]]]
    trees: dict[str, str]
    commits: dict[str, str]
    hunks: list[dict[str, Any]]
    texts: dict[str, str]
    setup: dict[str, Any]
    digest: str = ""

    def dump(self) -> str:
        """Return the receipt as JSON text, beginning with the digest of the rest."""
        body = {
            "receipt_format": RECEIPT_FORMAT,
            "setup": self.setup,
            "trees": self.trees,
            "commits": self.commits,
            "files": {root: [[p, m, i] for p, (m, i) in files.items()] for root, files in self.files.items()},
            "hunks": self.hunks,
            "texts": self.texts,
        }
        rest = '",' + json.dumps(body, separators=(",", ":"))[1:] + "\n"
        return _HEAD + hashlib.sha256(rest.encode()).hexdigest() + rest


def digest_of(text: str) -> str:
    """Return the digest in the text of a receipt."""
    return text[len(_HEAD) : _DIGEST_END]


def bundled_manifest(setup: Mapping[str, Any]) -> str | None:
    """Return the bundled manifest named in a receipt's `setup`; None for other manifests.

    That of another installation is known by its place in a wheel, or by having this one's lock.
    """
    from npu_rl.common.bundled import bundled_manifests

    named = Path(str(setup.get("manifest", "")))
    here = bundled_manifests().get(named.stem)
    if here is None:
        return None
    if here == named or named.parts[-4:-1] == ("npu_rl", "_data", "manifests"):
        return named.stem
    return named.stem if setup.get("lock", "") == _digest_of_lock(lock_model.lock_path(here)) else None


def _digest_of_lock(path: Path) -> str | None:
    try:
        return str(parse_json(lock_model.read_text(path))["digest"])
    except (LockError, ValueError, KeyError):
        return None


def setup_hint(paths: WorkspacePaths, setup: Mapping[str, Any] | None = None, *options: str) -> str:
    """Return the command that sets a workspace up again. If it contains NAME, a second line explains NAME.

    A path from a receipt is not repeated in a command line that the user may copy: a manifest is trusted, and whoever
    wrote the workspace chose the path.

    Args:
        setup: The receipt's; None if the receipt or the lock is damaged.
        options: Further ones of the command.
    """
    lock = _read_loosely(paths.lock)
    of_lock = {"manifest": f"{lock.get('manifest')}.yaml", "lock": lock.get("digest")}
    of_receipt = _read_loosely(paths.receipt).get("setup") if setup is None else setup
    facts = of_receipt if isinstance(of_receipt, Mapping) else of_lock
    name = bundled_manifest(facts)
    place = shlex.quote(str(paths.root))
    words = ["npu-rl setup --manifest", name or "NAME", "--workspace", place, *options]
    title = f" of the stack {one_line(str(lock['manifest'])[:100])}" if "manifest" in lock else ""
    return " ".join(words) + ("" if name else f"\nNAME is the manifest file{title} that you set it up from.")


def diff_command(paths: WorkspacePaths) -> str:
    """Return, on one line, the command that shows a workspace's local changes from any folder."""
    return f"npu-rl diff --workspace {shlex.quote(str(paths.root))}"


def validation_command(paths: WorkspacePaths, setup: Mapping[str, Any] | None = None) -> str:
    """Return, on one line, the command that selects another interpreter for the trainer's own checks."""
    return setup_hint(paths, setup, "--python PATH").replace("\n", "; ")


def again_hint(paths: WorkspacePaths, setup: Mapping[str, Any] | None = None) -> str:
    """Return the hint to set a workspace up again. Arguments: those of `setup_hint`."""
    return f"Set the workspace up again: {setup_hint(paths, setup)}"


def _read_loosely(path: Path) -> dict[str, Any]:
    """Return the JSON content of a workspace file, ignoring its digest; empty if it can't be read."""
    try:
        body = read_json(path, MAXIMUM_SIZE)
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def read_receipt(paths: WorkspacePaths) -> Receipt:
    """Read the receipt. Raises WorkspaceError if it is damaged, of another format, or does not follow its schema."""

    def refused(what: str, why: str | None = None) -> WorkspaceError:
        return WorkspaceError(what, where=str(paths.receipt), why=why, hint=again_hint(paths))

    try:
        text = read_file(paths.receipt, MAXIMUM_SIZE).decode("utf-8")
        body = parse_json(text)
        if body["receipt_format"] != RECEIPT_FORMAT:
            raise refused("The workspace has a receipt of another format")
        if not text.startswith(_HEAD) or digest_of(text) != _sha256(text[_DIGEST_END:]):
            raise refused("The receipt was edited by hand or damaged")
        files = {root: {p: (m, i) for p, m, i in listing} for root, listing in body["files"].items()}
        if sum(map(len, files.values())) != sum(map(len, body["files"].values())):
            raise ValueError("a path is listed twice")
        check_receipt(body, files)
        others = {key: body[key] for key in ("trees", "commits", "hunks", "texts", "setup")}
        return Receipt(files=files, **others, digest=digest_of(text))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise refused("The receipt can't be read", _reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_lock(paths: WorkspacePaths) -> tuple[Lock, str]:
    """Read the lock the workspace was set up from, with its digest. Raises LockError."""
    where = str(paths.lock)
    try:
        text = read_file(paths.lock, lock_model.MAXIMUM_SIZE).decode("utf-8")
    except (OSError, ValueError) as error:
        hint = again_hint(paths)
        raise LockError(
            "The workspace's lock can't be read", where=where, why=_reason(error), hint=hint
        ) from error
    return lock_model.parse_with_digest(text, where, again_hint(paths))


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
    _require(all(isinstance(text, str) for text in body["texts"].values()), "texts: not a text")
    for record in body["hunks"]:
        _require(record["root"] in files and _is_hunk(record), "hunks: not the record of a hunk")


def _is_hunk(record: Mapping[str, Any]) -> bool:
    texts = [record["file"], record["patch"], record["state"], *chain.from_iterable(record["lines"])]
    edges = [record["component"], *record["before"], *record["after"]]
    return (
        all(isinstance(text, str) for text in [*texts, *(edge for edge in edges if edge is not None)])
        and all(isinstance(record[key], int) for key in ("hunk", "line"))
        and all(len(pair) == 2 for pair in record["lines"])
    )


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
