"""The record of what was verified: read as written, damaged ones refused, and held to the recipe's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests, data_root
from npu_rl.common.errors import LockError
from npu_rl.common.yaml_documents.file_digests import sha256
from npu_rl.stack.lock.verification_record import (
    VerificationRecord,
    VerifiedRecipe,
    VerifiedStep,
    dump_record,
    read_record,
    record_path,
)

DIGEST = sha256((data_root() / "recipes" / "quickstart.yaml").read_bytes())
RECIPE = VerifiedRecipe(
    {"bundled:quickstart.yaml": DIGEST}, (VerifiedStep("plan", "failed", "2026-01-31", 1.5, "no"),)
)
RECORD = VerificationRecord(
    1, "quickstart", "5" * 40, (VerifiedStep("setup", "passed", "2026-01-31", 2.0),), {"quickstart": RECIPE}
)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = record_path(tmp_path / "quickstart.yaml")
    assert path.name == "quickstart.verified.json" and read_record(path) is None
    path.write_text(dump_record(RECORD))
    assert read_record(path) == RECORD


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{", "["),
        ('"record_format": 1', '"record_format": 2'),
        ('"passed"', '"done"'),
        ('"name": "setup"', '"nmae": "setup"'),
    ],
)
def test_a_damaged_one_is_refused(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "m.verified.json"
    path.write_text(dump_record(RECORD).replace(before, after, 1))
    with pytest.raises(LockError, match="can't be read"):
        read_record(path)


@pytest.mark.parametrize(
    ("files", "current"),
    [
        ({"bundled:quickstart.yaml": DIGEST}, True),
        ({"bundled:quickstart.yaml": "0" * 64}, False),
        ({"bundled:../recipes/quickstart.yaml": DIGEST}, False),
    ],
)
def test_a_recipe_is_as_verified_while_its_files_are(files: dict[str, str], current: bool) -> None:
    assert VerifiedRecipe(files).is_current is current


def test_each_bundled_record_is_of_its_manifest() -> None:
    for name, path in bundled_manifests().items():
        record = read_record(record_path(path))
        assert record is None or record.manifest == name
    names = {path.name.partition(".")[0] for path in (data_root() / "manifests").glob("*.verified.json")}
    assert names <= set(bundled_manifests())
