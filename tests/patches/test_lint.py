"""`npu-rl patches lint`: header, series, numbering, and malformed files explained by line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from npu_rl.common.bundled import data_root
from npu_rl.common.errors import PatchError, UsageError
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.stack.lint.lint_patches import AgainstFolder, lint_patches
from npu_rl.stack.lint.lint_report import LintReport
from npu_rl.stack.patches.parse_patch import parse_patch
from tests.in_process import run_here
from tests.patches.test_header import GOOD
from tests.support import clean_env

BAD = Path(__file__).parent / "bad"
PATCHSETS = sorted(path for path in (data_root() / "patchsets").glob("*/*") if path.is_dir())
DIFF = b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-x\n+y\n"


def folder_of(folder: Path, series: str | None, *names: str, header: str = GOOD) -> Path:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(header.encode() + DIFF)
    if series is not None:
        (folder / "series").write_text(series)
    return folder


def told(report: LintReport) -> list[tuple[str, str, str, int]]:
    return [(one.severity.value, one.rule, one.patch, one.line) for one in report.findings]


@pytest.mark.parametrize("folder", PATCHSETS, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_a_shipped_patchset_has_no_error(folder: Path) -> None:
    report = lint_patches(folder)
    assert [found for found in report.findings if found.severity is Severity.ERROR] == []
    assert report.ok and report.patches


@pytest.mark.parametrize("file", sorted(BAD.glob("*.patch")), ids=lambda p: p.stem)
def test_a_malformed_file_is_explained_by_line(file: Path) -> None:
    with pytest.raises(PatchError) as refused:
        parse_patch(file.read_bytes(), name=file.name)
    errors = [one for one in lint_patches(file).findings if one.severity is Severity.ERROR]
    assert errors and all(one.patch == file.name for one in errors)
    line = (refused.value.where or "").partition(":")[2].partition(",")[0]
    if errors[0].fix == "--fix":  # has a message of its own
        assert 0 < errors[0].line <= file.read_bytes().count(b"\n") + 1
    else:
        assert str(errors[0].line) == (line or "0")
        assert errors[0].message == refused.value.what


def test_a_good_folder_has_no_finding(tmp_path: Path) -> None:
    report = lint_patches(
        folder_of(tmp_path / "p", "0001-a.patch\n0002-b.patch\n", "0001-a.patch", "0002-b.patch")
    )
    assert (told(report), report.summary()) == ([], "2 patches, 2 hunks, no error")


@pytest.mark.parametrize(
    ("series", "names", "expected"),
    [
        (None, ["0001-a.patch"], [("advice", "series", "series", 0)]),
        ("0002-b.patch\n", ["0001-a.patch"], [("error", "series", "series", 1)]),
        ("a.patch\n", ["a.patch"], [("error", "series", "series", 1)]),
        ("0001-a.patch -p0\n", ["0001-a.patch"], [("error", "series", "series", 1)]),
        (
            "0001-a.patch\n",
            ["0001-a.patch", "0002-b.patch"],
            [("error", "series", "series", 0), ("advice", "series", "0002-b.patch", 0)],
        ),
        (
            "0001-a.patch\n0001-b.patch\n",
            ["0001-a.patch", "0001-b.patch"],
            [("advice", "numbering", "0001-b.patch", 0)],
        ),
        (
            "0002-a.patch\n0001-b.patch\n",
            ["0002-a.patch", "0001-b.patch"],
            [("advice", "numbering", "0001-b.patch", 0)],
        ),
        ("0001-a.patch\n0010-b.patch\n", ["0001-a.patch", "0010-b.patch"], []),
    ],
)
def test_series_and_numbering(
    tmp_path: Path, series: str | None, names: list[str], expected: list[tuple[str, str, str, int]]
) -> None:
    report = lint_patches(folder_of(tmp_path / "p", series, *names))
    assert told(report) == expected
    assert {Path(patch.name).name for patch in report.patches} <= set(names)


def test_a_foreign_folder_needs_no_names_and_no_header(tmp_path: Path) -> None:
    """verl-recipe's patches lie in subfolders, under names of their own, without a series."""
    folder = folder_of(tmp_path / "p", None, "rollout/fix.patch", "core.diff", header="Fix it\n\n")
    report = lint_patches(folder)
    assert [patch.name for patch in report.patches] == ["core.diff", "rollout/fix.patch"]
    assert report.ok and {one.severity for one in report.findings} == {Severity.ADVICE, Severity.NOTE}


def test_quilts_options_leave_the_order_of_the_series(tmp_path: Path) -> None:
    folder, files = tmp_path / "patches", tmp_path / "files"
    folder.mkdir()
    files.mkdir()
    (files / "x").write_text("one\ntwo\n")
    form = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n"
    (folder / "z.patch").write_text(f"{form}-one\n+ONE\n two\n")
    (folder / "a.patch").write_text(f"{form} ONE\n-two\n+TWO\n")
    (folder / "gone.patch").write_text("not applied\n")
    (folder / "series").write_text("# quilt\n\n./z.patch -p1\na.patch -p1 # last\n#gone.patch\n")
    report = lint_patches(folder, against=AgainstFolder(files))
    assert [patch.name for patch in report.patches] == ["z.patch", "a.patch"]
    rows = [(f.rule, f.severity, f.patch) for f in report.findings if f.severity is not Severity.NOTE]
    assert rows == [("series", Severity.ERROR, "series"), ("series", Severity.ADVICE, "gone.patch")]


def test_half_a_header_is_an_error(tmp_path: Path) -> None:
    text = GOOD.replace("Retire-When", "Retire-Wen")
    report = lint_patches(folder_of(tmp_path / "p", "0001-a.patch\n", "0001-a.patch", header=text))
    line = text[: text.index("Retire-Wen")].count("\n") + 1
    assert told(report) == [("error", "header", "0001-a.patch", line)]
    assert not report.ok


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such patch"):
        lint_patches(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PatchError, match="No patch"):
        lint_patches(tmp_path / "empty")


def test_the_command(tmp_path: Path) -> None:
    env = clean_env(tmp_path)
    done = run_here(["patches", "lint", BAD / "count-one-side.patch"], env, tmp_path)
    assert done.returncode == 1
    assert re.search(
        r"error\[\w+\] hunk 1 states 3 old and 2 new lines.*\n  at count-one-side\.patch:5\n", done.stdout
    )
    said = json.loads(run_here(["patches", "lint", "verl/0.5.0", "--json"], env, tmp_path).stdout)
    assert said["ok"] and said["patches"][0] == {
        "name": "0001-hf-rollout-repeats-once.patch",
        "files": 1,
        "hunks": 2,
        "proven": 0,
    }
    assert run_here(["patches", "lint", "nothing"], env, tmp_path).returncode == 2
    near = run_here(["patches", "lint", "verl/0.5.1"], env, tmp_path)
    assert "Did you mean the bundled patchset verl/0.5.0? npu-rl patches lint verl/0.5.0" in near.stderr


def test_names_without_a_prefix_take_strip(tmp_path: Path) -> None:
    (tmp_path / "x.patch").write_text("--- x\n+++ x\n@@ -1 +1 @@\n-x\n+y\n")
    report = lint_patches(tmp_path / "x.patch")
    assert not report.ok and report.findings[0].fix.startswith("Give --strip, the number of leading folders")
    assert lint_patches(tmp_path / "x.patch", strip=0).ok


def test_a_folder_of_patchsets_is_told_to_be_checked_one_by_one(tmp_path: Path) -> None:
    for version in ("1.0", "1.1"):
        folder_of(tmp_path / "up" / version, "0001-a.patch\n", "0001-a.patch")
    (advice,) = (one for one in lint_patches(tmp_path / "up").findings if one.rule == "series")
    assert "(1.0, 1.1)" in advice.fix and advice.fix.endswith(f"npu-rl patches lint {tmp_path}/up/1.1")
    assert "beside a manifest needs" in advice.message
