"""Texts, the patch between two of them, and its judgement in a third."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import unified_diff

from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_model import Patch
from npu_rl.stack.port.port_judgement import History, MarkerNames, PortedHunk, PortedPatch
from npu_rl.stack.port.port_patch import port_patch

NAMES = MarkerNames("upstream v2", "0001-mine.patch")


@dataclass(frozen=True)
class MadeVersion:
    contents: Mapping[str, bytes]
    obstacles: Mapping[str, str] = field(default_factory=dict)

    def read(self, path: str) -> bytes | None:
        return self.contents.get(path)

    def obstacle(self, path: str) -> str:
        return self.obstacles.get(path, "")

    def files(self) -> Iterable[str]:
        return self.contents


@dataclass
class MadeHistory:
    """What the commits did, by path; `asked` has the lines of each question."""

    deleted_by: dict[str, str] = field(default_factory=dict)
    renamed_to: dict[str, str] = field(default_factory=dict)
    asked: list[list[bytes]] = field(default_factory=list)

    def deleted(self, path: str) -> str | None:
        return self.deleted_by.get(path)

    def renamed(self, path: str) -> str | None:
        return self.renamed_to.get(path)

    def added(
        self, path: str, new_lines: Sequence[bytes], old_lines: Sequence[bytes], inside: str | None = None
    ) -> str | None:
        self.asked.append(list(new_lines))
        return "added"

    def lost(self, path: str, lines: Sequence[bytes], inside: str | None = None) -> str | None:
        self.asked.append(list(lines))
        return "lost"


def made_patch(old: str | None, new: str | None, path: str = "m.py", context: int = 3) -> Patch:
    """Return the patch between two texts; None is no file."""
    before, after = ((text or "").splitlines(keepends=True) for text in (old, new))
    names = ("/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}")
    diff = unified_diff(before, after, *names, n=context)
    mode = {(True, False): "new file mode 100644\n", (False, True): "deleted file mode 100644\n"}
    kind = mode.get((old is None, new is None), "")
    text = f"diff --git a/{path} b/{path}\n{kind}" + "".join(diff)
    return parse_patch(text.encode(), name="0001-mine.patch")


def judged(
    old: str | None,
    patched: str | None,
    new: str | None,
    path: str = "m.py",
    *,
    others: Mapping[str, str] | None = None,
    history: History | None = None,
) -> PortedPatch:
    """Judge the patch from `old` to `patched` in a version that has `new` and other files."""
    version = {name: text.encode() for name, text in (others or {}).items()}
    if new is not None:
        version[path] = new.encode()
    patch = made_patch(old, patched, path)

    def before(_: str) -> bytes | None:
        return None if old is None else old.encode()

    return port_patch(patch, before, MadeVersion(version), history, NAMES)


def only(ported: PortedPatch) -> PortedHunk:
    """Return its one hunk."""
    (hunk,) = ported.hunks
    return hunk
