"""Every bad manifest in bad/ is refused, with the message its first lines expect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npu_rl.common.errors import ManifestError
from npu_rl.common.yaml_documents.document_kind import InvalidManifest
from npu_rl.stack.manifest.load_manifest import load_manifest
from tests.config.documents import ids
from tests.manifest.examples import BAD, MINIMAL


@pytest.mark.parametrize("path", BAD, ids=ids)
def test_is_refused_with_the_expected_message(path: Path) -> None:
    expected = re.findall(r"^# expect: (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert expected, "the first line says what to expect"
    with pytest.raises(ManifestError) as caught:
        load_manifest(str(path))
    message = "\n".join([str(caught.value), *map(str, getattr(caught.value, "problems", ()))])
    for pattern in expected:
        assert re.search(pattern, message), f"{pattern!r} is not in:\n{message}"
    assert f"{path}:" in message, "the message names file and line"
    assert "hunter2" not in message, "a secret is never repeated"


def test_all_faults_are_reported_at_once_in_order_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    text = MINIMAL.replace("device: cpu", "device: tpu").replace("name: minimal", "name: -x")
    path.write_text(text.replace("to: verl", "to: /verl") + "colour: red\n", encoding="utf-8")
    with pytest.raises(InvalidManifest) as caught:
        load_manifest(str(path))
    found = [(problem.line, problem.path) for problem in caught.value.problems]
    assert found == [
        (2, ("name",)),
        (4, ("device",)),
        (9, ("components", "verl", "take", 0, "to")),
        (10, ("colour",)),
    ]
    assert caught.value.exit_code == 1


def test_a_misspelt_key_that_is_required_is_one_fault(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(MINIMAL.replace("device: cpu", "devise: cpu"), encoding="utf-8")
    with pytest.raises(InvalidManifest) as caught:
        load_manifest(str(path))
    (problem,) = caught.value.problems
    assert (problem.path, problem.message) == (("devise",), "unknown key; did you mean 'device'?")


def test_a_null_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(MINIMAL.replace("device: cpu", "device:"), encoding="utf-8")
    with pytest.raises(InvalidManifest) as caught:
        load_manifest(str(path))
    assert [problem.path for problem in caught.value.problems] == [("device",)]


@pytest.mark.parametrize("name", ["", "no-such-manifest", "\0", "\udc80", "x" * 5000])
def test_an_unknown_name_lists_what_is_bundled(name: str) -> None:
    with pytest.raises(ManifestError, match="Unknown bundled manifest") as caught:
        load_manifest(name)
    assert "`npu-rl manifests list` prints the names" in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize("path", ["./nobody.yaml", "a/\0.yaml", "x/" * 3000 + "y.yaml", "\udc80.yaml", "/"])
def test_a_path_that_cannot_be_read(path: str) -> None:
    with pytest.raises(ManifestError, match="can't be read"):
        load_manifest(path)


def test_a_folder_and_a_pipe_are_no_manifests(tmp_path: Path) -> None:
    import os

    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    for name in ("folder.yaml", "pipe.yaml"):
        with pytest.raises(ManifestError, match=r"(?i)not a regular file"):
            load_manifest(str(tmp_path / name))
