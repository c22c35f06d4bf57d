"""Local changes of a component as a patch with the component's own paths, for its `patches:`.

Paths in the code tree differ from the component's: tools/converter.py may be verl's scripts/converter.py, and a patch
of verl has to use the latter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from npu_rl.common.errors import UsageError
from npu_rl.common.yaml_documents.suggest import did_you_mean
from npu_rl.stack.compose.assemble import code_paths
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.diff import fit_for_patch, patch_of
from npu_rl.workspace.verification.file_origin import upstream_path
from npu_rl.workspace.verification.verify import verify

if TYPE_CHECKING:
    from npu_rl.stack.sources.progress import Notify

_FILE = re.compile(rb"^diff --git ", re.MULTILINE)
_NAME = re.compile(rb"^(--- |\+\+\+ |diff --git )(.*)$", re.MULTILINE)
_ODD = re.compile(rb'[\x00-\x1f"\\\x7f-\xff]')


def component_changes(paths: WorkspacePaths, name: str, notify: Notify) -> bytes:
    """Return the local changes of one component as a patch with its own paths; empty without changes.

    Notifies of other effects of the patch, and of changes that a patch can't express.

    Raises:
        UsageError: For an unknown component.
        WorkspaceError: Without the git folder.
    """
    report = fit_for_patch(paths, verify(paths, notify), notify)
    component = report.lock.components.get(name)
    if component is None:
        raise UsageError(
            f"Unknown component {name!r}{did_you_mean(name, report.lock.components)}",
            hint=f"Name one of these: {', '.join(report.lock.components)}",
        )
    parts: dict[str, bytes] = {}  # by path in the component
    for root in ("code", f"src/{name}"):
        start = root + "/"
        files = sorted(
            drift.path.removeprefix(start)
            for drift in report.drift
            if drift.component == name and drift.path.startswith(start) and not drift.path.endswith("/")
        )
        if not files:
            continue
        for path, text in _by_file(patch_of(paths, root, report.receipt.trees[root], files), files):
            component_path = path if root != "code" else upstream_path(component, path)
            if component_path is None:
                notify(f"not shown: {root}/{path} (not a path of {name})")
                continue
            if root == "code":
                _note_other_effects(report.lock, name, path, component_path, notify)
            text = text if component_path == path else _renamed(text, component_path)
            if parts.setdefault(component_path, text) != text:
                notify(
                    f"not shown: {root}/{path} (another copy of {component_path} of {name} has different changes)"
                )
    return b"".join(parts[component_path] for component_path in sorted(parts))


def _by_file(patch: bytes, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield each file's part of a patch, in git's order."""
    starts = [found.start() for found in _FILE.finditer(patch)]
    names = {_header(path): path for path in paths}
    for start, end in zip(starts, [*starts[1:], len(patch)], strict=True):
        part = patch[start:end]
        line = part.split(b"\n", 1)[0]
        if line in names:
            yield names[line], part


def _header(path: str) -> bytes:
    return b"diff --git " + _quoted("a/" + path) + b" " + _quoted("b/" + path)


def _renamed(part: bytes, path: str) -> bytes:
    """Rename the file in its part of a patch. The name occurs only before the first hunk or binary data."""
    head, mark, body = part, b"", b""
    for candidate in (b"\n@@ ", b"\nGIT binary patch\n"):
        if candidate in head:
            head, mark, body = head.partition(candidate)

    def line(found: re.Match[bytes]) -> bytes:
        if found[1] == b"diff --git ":
            return _header(path)
        if found[2] == b"/dev/null":
            return found[0]
        side = "a/" if found[1] == b"--- " else "b/"
        name = _quoted(side + path)
        return found[1] + name + (b"\t" if b" " in name and not name.startswith(b'"') else b"")

    return _NAME.sub(line, head) + mark + body


def _quoted(name: str) -> bytes:
    """Quote a name like git in a patch."""
    raw = name.encode("utf-8", "surrogateescape")
    if not _ODD.search(raw):
        return raw
    special = {7: b"a", 8: b"b", 9: b"t", 10: b"n", 11: b"v", 12: b"f", 13: b"r", 34: b'"', 92: b"\\"}

    def escaped(found: re.Match[bytes]) -> bytes:
        code = found[0][0]
        return b"\\" + special.get(code, b"%03o" % code)

    return b'"' + _ODD.sub(escaped, raw) + b'"'


def _note_other_effects(lock: Lock, name: str, path: str, component_path: str, notify: Notify) -> None:
    """Print notes on other components that share changed files with a component in the code tree."""
    others = [laid for laid in code_paths(lock.components[name], component_path) if laid != path]
    if others:
        notify(
            f"note: {component_path} of {name} is also at {', '.join(others)}: the patch would change it there too"
        )
    changing = [patch.name for patch in lock.tree_patches if path in patch.files]
    if changing:
        notify(
            f"note: {path} is also changed by the tree patches {', '.join(changing)}, which are applied after those of "
            f"{name}: this patch may have to be a tree patch"
        )
