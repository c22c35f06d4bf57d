"""`npu-rl patches lint`: format, header and series, git's own reading, where patches apply, and Python that breaks."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from npu_rl.common.bundled import data_root
from npu_rl.stack.lint.lint_patches import lint_patches
from npu_rl.stack.lint.lint_report import LintReport
from npu_rl.stack.lint.patch_targets import files_of_folder
from npu_rl.stack.lint.python_names import new_faults
from tests.in_process import run_here
from tests.patches.helpers import contents, edits, git_apply, git_diff
from tests.patches.test_header import GOOD
from tests.support import clean_env, index_env

BAD = Path(__file__).parent / "bad"
PATCHSETS = sorted(path.parent for path in (data_root() / "patchsets").glob("*/*/series"))
DIFF = b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-x\n+y\n"
OLD = b"""\
import os
from math import sqrt


def one(x):
    return os.fspath(x)


def two(x):
    return sqrt(x)
"""


def folder_of(folder: Path, series: str | None, *names: str, header: str = GOOD, diff: bytes = DIFF) -> Path:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(header.encode() + diff)
    if series is not None:
        (folder / "series").write_text(series)
    return folder


def against(place: Path, folder: Path) -> LintReport:
    with files_of_folder(folder) as files:
        return lint_patches(place, against=files, against_name=str(folder))


def told(report: LintReport) -> list[tuple[str, str, str, int]]:
    found = [one for one in report.findings if (one.rule, one.severity.value) != ("header", "note")]
    return [(one.severity.value, one.rule, one.patch, one.line) for one in found]


@pytest.mark.parametrize("folder", PATCHSETS, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_a_shipped_patchset_has_no_finding(folder: Path) -> None:
    report = lint_patches(folder)
    assert told(report) == [] and report.ok and report.patches


@pytest.mark.parametrize(
    ("series", "names", "expected"),
    [
        ("0001-a.patch\n0010-b.patch\n", ["0001-a.patch", "0010-b.patch"], []),
        ("z.patch -p1\nsub/a.diff # last\n#gone.patch\n", ["z.patch", "sub/a.diff", "gone.patch"], []),
        (None, ["0001-a.patch"], [("advice", "series", "series", 0)]),
        ("0002-b.patch\n", ["0001-a.patch"], [("error", "series", "series", 1)]),
        ("a.patch -R\n", ["a.patch"], [("error", "series", "series", 1)]),
        ("a.patch\n", ["a.patch", "b.patch"], [("error", "series", "series", 0)]),
    ],
)
def test_series(
    tmp_path: Path, series: str | None, names: list[str], expected: list[tuple[str, str, str, int]]
) -> None:
    assert told(lint_patches(folder_of(tmp_path / "p", series, *names))) == expected


def test_strip_is_that_of_the_series_unless_given(tmp_path: Path) -> None:
    bare = DIFF.replace(b"a/x", b"x").replace(b"b/x", b"x")
    folder = folder_of(tmp_path / "p", "a.patch -p0\n", "a.patch", diff=bare)
    assert lint_patches(folder).ok
    found = lint_patches(folder, strip=1).findings[0]
    assert (found.rule, found.line) == ("format", GOOD.count("\n") + 1) and "--strip" in found.fix


def test_half_a_header_is_an_error(tmp_path: Path) -> None:
    text = GOOD.replace("Retire-When", "Retire-Wen")
    report = lint_patches(folder_of(tmp_path / "p", "0001-a.patch\n", "0001-a.patch", header=text))
    assert told(report) == [("error", "header", "0001-a.patch", 1)] and not report.ok


def test_white_space_as_git_reports_it(tmp_path: Path) -> None:
    patch = tmp_path / "x.patch"
    patch.write_bytes(b"--- a/x\n+++ b/x\n@@ -1 +1,3 @@\n x\n+y \n+ \tz\n")
    assert told(lint_patches(patch)) == [("advice", "white-space", "x.patch", n) for n in (5, 6)]
    patch.write_bytes(b"--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n x\r\n+y\r\n")
    assert told(lint_patches(patch)) == []
    patch.write_bytes(b"--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n x\n+y\r\n")
    assert told(lint_patches(patch)) == [("advice", "white-space", "x.patch", 5)]


def test_a_series_is_held_against_the_file_it_has_reached(tmp_path: Path) -> None:
    """The second patch fits only after the first; after one that does not apply, what follows is not judged."""
    versions = [b"1\n2\n3\n4\n", b"1\n-2\n3\n4\n", b"1\n-2\n-3\n4\n"]
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/a.py").write_bytes(versions[0])
    folder = folder_of(tmp_path / "p", "2.patch\n1.patch\n", "2.patch", "1.patch")
    for name, old, new in (("2.patch", *versions[:2]), ("1.patch", *versions[1:])):
        (folder / name).write_bytes(git_diff(old, new))
    assert told(against(folder, tmp_path)) == []
    (folder / "series").write_text("1.patch\n2.patch\n")
    rows = [("error", "does-not-apply", "1.patch", 5), ("note", "does-not-apply", "2.patch", 0)]
    assert told(against(folder, tmp_path)) == rows


@pytest.mark.second
@given(contents(rich=False), st.data())
@settings(max_examples=15, deadline=None)
def test_what_git_made_applies_where_it_was_made(old: bytes, data: st.DataObject) -> None:
    new = data.draw(edits(old, rich=False))
    assume(old != new and old)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pkg").mkdir()
        (folder / "pkg/a.py").write_bytes(old)
        patch = folder / "x.patch"
        patch.write_bytes(git_diff(old, new))
        assert not [one for one in against(patch, folder).findings if one.rule == "does-not-apply"]
        (folder / "pkg/a.py").write_bytes(b"above\n" + old)
        assert not against(patch, folder).ok or not git_apply(b"above\n" + old, patch.read_bytes())[0]


def faults(old: bytes | None, new: bytes, path: str = "pkg/a.py") -> list[tuple[str, int]]:
    return [(rule, line) for rule, line, _ in new_faults(path, old, new)]


def test_names_that_nothing_defines() -> None:
    new = OLD.replace(b"    return sqrt(x)", b"    y = floor(x)\n    return sqrt(y)")
    assert faults(OLD, new) == faults(None, new) == [("names", 10)]
    assert faults(OLD, new.replace(b"import sqrt", b"import floor, sqrt")) == []
    assert faults(OLD, OLD.replace(b"import os\n", b"")) == [("names", 5)]
    undefined = OLD + b"\n\nprint(injected)\n"
    assert faults(undefined, undefined.replace(b"(injected)", b"(injected, injected)")) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (OLD, OLD.replace(b"def two(x):", b"def two(x:"), [("python", 9)]),
        (OLD, OLD + b"return 1\n", [("python", 11)]),  # parses, and does not compile
        (None, b"def f(:\n", [("python", 1)]),
        (b"print 1\n", b"print 2\n", []),
        (b"print 1\n", b"print(x)\n", []),
        (OLD, OLD + b"x = '\\d'\n", []),  # only a warning
        (OLD, OLD + b"x = " + b"(" * 5000 + b")" * 5000 + b"\n", [("python", 11)]),
    ],
)
def test_python_that_does_not_compile(old: bytes | None, new: bytes, expected: list[tuple[str, int]]) -> None:
    assert faults(old, new) == expected


def test_a_fault_is_named_at_its_line_of_the_patch(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/a.py").write_bytes(OLD)
    patch = tmp_path / "x.patch"
    patch.write_bytes(
        git_diff(OLD, OLD.replace(b"    return sqrt(x)", b"    y = floor(x)\n    return sqrt(y)"))
    )
    ((*_, line),) = told(against(patch, tmp_path))
    assert b"floor" in patch.read_bytes().splitlines()[line - 1]
    assert told(lint_patches(patch)) == []  # only a new file is whole in a patch
    patch.write_bytes(git_diff(None, b"x = y\n"))
    assert told(lint_patches(patch)) == [("error", "names", "x.patch", 7)]


def test_the_command(tmp_path: Path) -> None:
    env = clean_env(tmp_path)
    done = run_here(["patches", "lint", BAD / "count-one-side.patch"], env, tmp_path)
    assert done.returncode == 1 and "error[format]" in done.stdout
    said = json.loads(run_here(["patches", "lint", "verl/0.5.0", "--json"], env, tmp_path).stdout)
    assert said["ok"] and said["patches"] == [
        {"name": "0001-hf-rollout-repeats-once.patch", "files": 1, "hunks": 2}
    ]
    near = run_here(["patches", "lint", "verl/0.5.1"], env, tmp_path)
    assert near.returncode == 2 and "verl/0.5.0" in near.stderr


def test_the_command_against_a_folder_and_a_manifest(tmp_path: Path, quickstart_workspace: Path) -> None:
    """A patch that the lock does not have comes after all of the component that has its files."""
    env = index_env(tmp_path, quickstart_workspace.parent / "store")
    words = ["patches", "lint", "verl/0.5.0", "--json", "--against"]
    said = json.loads(run_here([*words, "quickstart"], env, tmp_path).stdout)
    assert (said["ok"], said["against"], said["findings"]) == (True, "quickstart", [])
    done = run_here([*words, tmp_path], clean_env(tmp_path), tmp_path)
    assert [one["rule"] for one in json.loads(done.stdout)["findings"]] == ["does-not-apply"]
    assert run_here([*words, "no-such-manifest"], env, tmp_path).returncode == 2
    file = "verl/workers/rollout/hf_rollout.py"
    now = (quickstart_workspace / "code" / file).read_bytes()
    patch = tmp_path / "x.patch"
    patch.write_bytes(git_diff(now, b"# first\n" + now, path=file))
    assert run_here(["patches", "lint", patch, "--against", "quickstart"], env, tmp_path).returncode == 0
    patch.write_bytes(git_diff(b"x\n", b"y\n", path="nowhere.py"))
    done = run_here(["patches", "lint", patch, "--against", "quickstart"], env, tmp_path)
    assert done.returncode == 1 and "No component has every file" in done.stdout
