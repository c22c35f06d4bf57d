"""The table of all bundled patches, each with its purpose, its tests on a CPU, and the claims that need an NPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npu_rl.stack.patches import patch_header as fields
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.series import read_patchset
from npu_rl.stack.patches.version_columns import ComponentVersions

_HEAD = """\
# Patches

Every adaptation of an upstream, by the headers of its patches. `.ci/regenerate` writes this table, and a test holds
this file to it; `npu-rl patches list` is shorter. An adaptation is switched by `NPU_RL_<NAME>`, such as
`NPU_RL_KV_CACHE_REUSE=0`, or by `adaptations:` in a recipe; off is upstream's behaviour.

"""
_COLUMNS = ("adaptation", "version", "patch", "proven on a CPU by", "needs an NPU", "retire when")


@dataclass(frozen=True)
class PatchRow:
    """One patch.

    Attributes:
        adaptation: The slugs of its switches.
        version: Component and version of the patchset.
    """

    adaptation: tuple[str, ...]
    version: str
    patch: str
    subject: str
    tests: tuple[str, ...]
    needs_npu: str
    retire_when: str

    @property
    def component(self) -> str:
        """The component's name."""
        return self.version.partition(" ")[0]


@dataclass(frozen=True)
class PatchList:
    """The result of `patches list`: the patches, and their state in each version of their component."""

    patches: Sequence[PatchRow]
    versions: Mapping[str, ComponentVersions]


def patch_rows(patchsets: Path) -> list[PatchRow]:
    """Return the patches of every patchset in the folder, in the series' order. Raises PatchError."""
    folders = sorted(path.parent for path in patchsets.glob("*/*/series"))
    return [row for folder in folders for row in _rows_of_patchset(folder)]


def _rows_of_patchset(folder: Path) -> list[PatchRow]:
    rows = []
    for source in read_patchset(folder):
        header = parse_patch(source.data, name=source.name).header
        parsed = fields.parse_header(header)
        rows.append(
            PatchRow(
                parsed.switches,
                f"{folder.parent.name} {folder.name}",
                source.name,
                parsed.subject,
                parsed.tests,
                _one_line(parsed.fields.get(fields.NEEDS_NPU, "")),
                _one_line(parsed.fields.get(fields.RETIRE_WHEN, "")),
            )
        )
    return rows


def _one_line(value: str) -> str:
    return " ".join(value.split())


def patch_table(rows: Sequence[PatchRow]) -> str:
    """Return the page as Markdown."""
    lines = [_row(_COLUMNS), _row(["---"] * len(_COLUMNS))]
    for row in rows:
        switches = ", ".join(row.adaptation) or "(no switch)"
        tests = "<br>".join(f"`{test}`" for test in row.tests)
        patch = f"{row.patch}: {row.subject}"
        lines.append(_row([switches, row.version, patch, tests, row.needs_npu, row.retire_when]))
    return _HEAD + "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
