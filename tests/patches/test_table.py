"""patchsets/README.md is what the patches' headers say."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests, data_root
from npu_rl.stack.patches.patch_names import slug_of_file
from npu_rl.stack.patches.patch_table import patch_rows
from npu_rl.stack.patches.version_columns import read_versions
from tests.support import ROOT, ok, rewrites, run_cli, run_program


def test_every_patch_has_its_row() -> None:
    patches = sorted(path.name for path in (data_root() / "patchsets").rglob("*.patch"))
    rows = patch_rows(data_root() / "patchsets")
    assert sorted(row.patch for row in rows) == patches
    assert all(row.tests and row.needs_npu and row.retire_when for row in rows)


def test_each_patch_is_present_in_its_version_and_in_no_other() -> None:
    rows, versions = patch_rows(data_root() / "patchsets"), read_versions(data_root() / "patchsets")
    present = {
        (name, slug, version)
        for name, one in versions.items()
        for slug, fates in one.patches.items()
        for version in one.versions
        if fates.get(version) == "present"
    }
    own = {(row.component, slug_of_file(row.patch), row.version.partition(" ")[2]) for row in rows}
    assert present == own, "write it again: .ci/regenerate patchsets/versions.json"


@pytest.mark.upstreams
def test_the_other_states_are_those_that_a_port_finds(upstreams: Path, tmp_path: Path) -> None:
    rules = "\n".join(
        dict.fromkeys(rule for name in bundled_manifests() for rule in rewrites(upstreams, name).split("\n"))
    )
    env = {**os.environ, "NPU_RL_REWRITE": rules, "NPU_RL_STORE": str(tmp_path / "store")}
    ok(run_program([sys.executable, ROOT / ".ci/regenerate", "--check", "patchsets/versions.json"], env=env))


def test_the_list_has_a_column_for_each_version(tmp_path: Path) -> None:
    lines = ok(run_cli(["patches", "list"], dict(os.environ), tmp_path)).stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("verl "))
    head = lines[start].split()
    temperature = next(line for line in lines[start:] if line.startswith("  rollout-temperature "))
    cells = [temperature[lines[start].index(version) :].split(" ", 1)[0] for version in head[1:]]
    assert dict(zip(head[1:], cells, strict=True)) == {
        **{"0.5.0": "", "54c9b73": "", "cccc2ef": "present", "796871d": "present", "55e3c5b": "present"},
        **{"7aed6b2": "gone", "8851219": "gone"},
    }
    found = json.loads(run_cli(["patches", "list", "--json"], dict(os.environ), tmp_path).stdout)
    assert "0006-rollout-compile.patch" in {row["patch"] for row in found["patches"]}
    states = found["versions"]["verl"]["patches"]["rollout-compile"]
    assert states == {"55e3c5b": "present", "7aed6b2": "gone", "8851219": "gone"}
