"""`unchanged` sees every changed byte, and costs no heavy import."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from npu_rl.common.yaml_documents.file_digests import SIZE_LIMIT, sha256, unchanged
from npu_rl.stack.manifest.load_manifest import load_manifest
from tests.manifest.examples import MINIMAL
from tests.support import ok, run_program


@pytest.fixture
def pair(tmp_path: Path) -> tuple[dict[str, str], Path]:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "base.yaml").write_text(MINIMAL)
    child = tmp_path / "m.yaml"
    child.write_text("extends: base/base.yaml\n")
    return dict(load_manifest(str(child)).files), child


def test_unchanged(pair: tuple[dict[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    files, child = pair
    assert unchanged(files, child)
    monkeypatch.chdir(child.parent)
    assert unchanged(files, Path("m.yaml"))


def test_a_comment_in_either_file_is_a_change(pair: tuple[dict[str, str], Path]) -> None:
    files, child = pair
    child.write_text("extends: base/base.yaml # why\n")
    assert not unchanged(files, child)
    child.write_text("extends: base/base.yaml\n")
    assert unchanged(files, child)
    with (child.parent / "base" / "base.yaml").open("a") as stream:
        stream.write("\n")
    assert not unchanged(files, child)


def test_what_cannot_be_read_is_a_change(pair: tuple[dict[str, str], Path]) -> None:
    files, child = pair
    parent = child.parent / "base" / "base.yaml"
    parent.unlink()
    assert not unchanged(files, child)
    os.mkfifo(parent)
    assert not unchanged(files, child)


def test_a_record_that_does_not_name_the_manifest_is_a_change(pair: tuple[dict[str, str], Path]) -> None:
    files, child = pair
    assert not unchanged({}, child)
    assert not unchanged({"base/base.yaml": files["base/base.yaml"]}, child)
    assert not unchanged({"bundled:m.yaml": files["m.yaml"]}, child)
    assert not unchanged({**files, str(child): files["m.yaml"]}, child), "no absolute names"
    assert not unchanged({**files, "": files["m.yaml"]}, child)
    assert not unchanged({**files, "\0": files["m.yaml"]}, child)
    assert not unchanged(files, child.parent / "nobody" / "m.yaml")


def test_a_large_file_is_a_change(tmp_path: Path) -> None:
    raw = b"x" * (SIZE_LIMIT + 1)
    (tmp_path / "m.yaml").write_bytes(raw)
    assert not unchanged({"m.yaml": sha256(raw)}, tmp_path / "m.yaml")


def test_no_heavy_import() -> None:
    code = (
        "import sys, npu_rl.stack.manifest, npu_rl.common.bundled,"
        "npu_rl.common.yaml_documents.file_digests, npu_rl.common.yaml_documents.text_checks;"
        "print(sorted({'pydantic', 'yaml', 'subprocess', 'packaging', 'difflib'} & set(sys.modules)))"
    )
    done = ok(run_program([sys.executable, "-c", code]))
    assert done.stdout.strip() == "[]"
