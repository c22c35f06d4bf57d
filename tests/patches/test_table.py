"""patchsets/README.md is what the patches' headers say."""

from __future__ import annotations

import json
import os
from pathlib import Path

from npu_rl.common.bundled import data_root
from npu_rl.stack.patches.patch_table import PatchRow, patch_rows, patch_table
from tests.support import ROOT, ok, run_cli


def test_the_committed_table_is_the_generated_one() -> None:
    written = (ROOT / "patchsets" / "README.md").read_text(encoding="utf-8")
    assert written == patch_table(patch_rows(data_root() / "patchsets")), (
        "write it again: .ci/regenerate patchsets/README.md"
    )


def test_every_patch_has_its_row() -> None:
    patches = sorted(path.name for path in (data_root() / "patchsets").rglob("*.patch"))
    rows = patch_rows(data_root() / "patchsets")
    assert sorted(row.patch for row in rows) == patches
    assert all(row.tests and row.needs_npu and row.retire_when for row in rows)


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    row = PatchRow(("a-b",), "verl 1", "0001-a-b.patch", "x | y", ("tests/t.py::test_x",), "nothing", "never")
    line = patch_table([row]).splitlines()[-1]
    assert line == r"| a-b | verl 1 | 0001-a-b.patch: x \| y | `tests/t.py::test_x` | nothing | never |"


def test_the_command_prints_it(tmp_path: Path) -> None:
    done = ok(run_cli(["list", "--patches"], dict(os.environ), tmp_path))
    assert done.stdout == patch_table(patch_rows(data_root() / "patchsets"))
    rows = json.loads(run_cli(["list", "--patches", "--json"], dict(os.environ), tmp_path).stdout)
    assert {"adaptation": ["hf-rollout-repeats-once"], "version": "verl 0.5.0"}.items() <= next(
        row for row in rows if row["patch"].startswith("0001-hf")
    ).items()
