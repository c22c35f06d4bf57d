"""The switches of adaptations that a tree or the bundled patches have, by their slugs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from npu_rl.bundled import data_root, runtime_root
from npu_rl.patches.patch_header import HOW, Header, parse_header
from npu_rl.trainer_code.source_files import source_files

_SWITCH_READ = re.compile(r"\benabled\(\s*['\"]([a-z0-9-]+)['\"]")
_RUNTIME = "npu_rl_runtime"


def known_switches(code: Path | None) -> dict[str, str]:
    """Return where each switch is read, or the patch whose header names it, by slug.

    Args:
        code: The code folder; None stands for the runtime of this npu-rl.
    """
    runtime = code / _RUNTIME if code else runtime_root()
    result = dict(_switches_in_headers(data_root() / "patchsets"))
    result.update(_switches_in_files(sorted(runtime.rglob("*.py")), runtime.parent))
    return result


def switches_in_code(code: Path) -> dict[str, str]:
    """Return where patched files read switches, by slug. Reads the whole tree: about 0.2 s."""
    return dict(_switches_in_files(source_files(code.rglob("*.py")), code))


def patched_switches(place: Path) -> dict[str, bool]:
    """Return the switches that the headers of patches name, and whether each is on by default.

    Args:
        place: A patchset's folder, or one patch.
    """
    found: dict[str, bool] = {}
    for header, _ in _headers(place):
        off = header.fields.get(HOW, "").startswith("OFF unless")
        found.update(dict.fromkeys(header.switches, not off))
    return found


def _switches_in_files(paths: list[Path], root: Path) -> list[tuple[str, str]]:
    found = []
    for path in paths:
        content = path.read_bytes()
        if b"enabled(" in content:
            text = content.decode("utf-8", "replace")
            for match in _SWITCH_READ.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                found.append((match[1], f"{path.relative_to(root).as_posix()}:{line}"))
    return found


def _switches_in_headers(folder: Path) -> list[tuple[str, str]]:
    return [(slug, place) for header, place in _headers(folder) for slug in header.switches]


def _headers(folder: Path) -> Iterator[tuple[Header, str]]:
    for path in [folder] if folder.is_file() else sorted(folder.rglob("*.patch")):
        header = path.read_text(encoding="utf-8", errors="replace").partition("\ndiff --git")[0]
        yield parse_header(header), path.relative_to(folder.parent).as_posix()
