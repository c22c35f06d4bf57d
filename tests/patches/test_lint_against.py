"""`npu-rl patches lint --against`: where patches apply, and what their index lines prove."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from npu_rl.stack.lint.lint_patches import AgainstFolder, lint_patches
from npu_rl.stack.lint.lint_report import LintReport
from tests.in_process import run_here
from tests.patches.helpers import contents, edits, git, git_apply, git_diff
from tests.support import clean_env, index_env

TWINS = b"""\
class One:
    def run(self, x):
        a = 1
        b = 2
        c = 3
        return x


class Two:
    def run(self, x):
        a = 1
        b = 2
        c = 3
        return x
"""


def run(folder: Path, *args: str) -> bytes:
    date = "2026-01-01T00:00:00Z"
    done = git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "-c", f"user.date={date}", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def repository(folder: Path, **files: bytes) -> Path:
    folder.mkdir()
    run(folder, "init", "-q")
    return commit(folder, **files)


def commit(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        (folder / f"{name}.py").write_bytes(content)
    run(folder, "add", "-A")
    run(folder, "commit", "-q", "-m", "x")
    return folder


def against(place: Path, folder: Path) -> LintReport:
    return lint_patches(place, against=AgainstFolder(folder), against_name=str(folder))


def rules(report: LintReport) -> list[tuple[str, str, int]]:
    found = [one for one in report.findings if one.rule not in ("header", "series", "python", "names")]
    return [(one.severity.value, one.rule, one.line) for one in found]


def numbered(count: int) -> list[bytes]:
    return [b"line %d\n" % n for n in range(count)]


def test_a_series_is_held_against_the_file_it_has_reached(tmp_path: Path) -> None:
    """The second patch fits only after the first, and its ids are those of the file between."""
    repo = repository(tmp_path / "r", a=b"".join(numbered(30)))
    for at in (5, 6, 20):
        lines = (repo / "a.py").read_bytes().splitlines(keepends=True)
        lines[at] = b"changed %d\n" % at
        commit(repo, a=b"".join(lines))
    run(repo, "format-patch", "-q", "--full-index", "-3", "-o", str(tmp_path / "p"))
    run(repo, "checkout", "-q", "HEAD~3")
    report = against(tmp_path / "p", repo)
    assert rules(report) == []
    assert report.summary().endswith("3 of 3 files proven by index ids")
    first = sorted((tmp_path / "p").glob("*.patch"))[0]
    first.unlink()
    report = against(tmp_path / "p", repo)
    assert ("error", "does-not-apply") in [one[:2] for one in rules(report)]
    assert ("note", "does-not-apply") in [one[:2] for one in rules(report)]  # what follows can't be judged
    assert not report.ok


def test_the_release_that_an_index_line_fits_is_named(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", a=b"".join(numbered(30)))
    run(repo, "tag", "-a", "-m", "one", "v1")
    lines = numbered(30)
    lines[3] = b"three\n"
    commit(repo, a=b"".join(lines))
    run(repo, "format-patch", "-q", "-1", "-o", str(tmp_path / "p"))
    lines[25] = b"twenty-five\n"
    commit(repo, a=b"".join(lines))
    run(repo, "tag", "v2")
    lines[3] = b"line 3\n"
    commit(repo, a=b"".join(lines))
    (found,) = [one for one in against(tmp_path / "p", repo).findings if one.rule == "index"]
    assert (found.severity.value, found.why) == ("advice", "It is that of v1.")
    inner = tmp_path / "r" / "sub"
    inner.mkdir()
    assert not against(tmp_path / "p", inner).ok  # no such file there


def test_a_hunk_that_was_cut_is_shown_by_the_index_line(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", a=b"".join(numbered(30)))
    lines = numbered(30)
    lines[3] = b"a long line that will lose its end\n"
    commit(repo, a=b"".join(lines))
    patch = tmp_path / "x.patch"
    patch.write_bytes(run(repo, "diff", "--full-index", "HEAD~", "HEAD").replace(b" its end", b""))
    run(repo, "checkout", "-q", "HEAD~")
    assert rules(against(patch, repo)) == [("error", "index", 1)]


def test_an_offset_is_an_error(tmp_path: Path) -> None:
    repo = repository(tmp_path / "r", a=b"".join(numbered(30)))
    lines = numbered(30)
    lines[20] = b"changed\n"
    commit(repo, a=b"".join(lines))
    patch = tmp_path / "x.patch"
    patch.write_bytes(run(repo, "diff", "HEAD~", "HEAD"))
    (repo / "a.py").write_bytes(b"new first line\n" + b"".join(numbered(30)))
    found = [one for one in against(patch, repo).findings if one.rule == "offset"]
    assert [(one.severity.value, one.line) for one in found] == [("error", 5)]
    assert "only +1 lines from its line" in found[0].message


def test_a_hunk_without_context_that_git_refuses(tmp_path: Path) -> None:
    """An addition below the only line; below two lines git takes it."""
    for count, expected in ((1, [("error", "does-not-apply", 5)]), (2, [])):
        before = b"".join(numbered(30)[:count])
        repo = repository(tmp_path / str(count), a=before)
        commit(repo, a=before + b"added\n")
        patch = tmp_path / f"{count}.patch"
        patch.write_bytes(run(repo, "diff", "-U0", "HEAD~", "HEAD"))
        run(repo, "checkout", "-q", "HEAD~")
        assert rules(against(patch, repo)) == expected


def test_a_hunk_in_a_twin(tmp_path: Path) -> None:
    """Its heading names the class that it was made for; git apply takes the other one without a word."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/a.py").write_bytes(TWINS)
    lines = TWINS.splitlines(keepends=True)
    lines[11] = b"        b = 3\n"
    diff = git_diff(TWINS, b"".join(lines))
    patch = tmp_path / "x.patch"
    patch.write_bytes(diff)
    assert rules(against(patch, tmp_path)) == []
    bare = re.sub(rb"(?m)^index .*\n| @@.*$", lambda found: b" @@" if found[0][:1] == b" " else b"", diff)
    short = b"@@ -11,3 +11,3 @@\n         a = 1\n-        b = 2\n+        b = 3\n         c = 3\n"
    names = bare.partition(b"@@")[0]
    patch.write_bytes(names + short)
    assert [one[:2] for one in rules(against(patch, tmp_path))] == [("advice", "twin")]
    moved = names + short.replace(b"@@ -11,3 +11,3 @@", b"@@ -3,3 +3,3 @@ class Two:")
    patch.write_bytes(moved)
    assert [one[:2] for one in rules(against(patch, tmp_path))] == [("error", "twin")]
    assert git_apply(TWINS, moved)[0]


def test_links_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "real.py").write_bytes(b"1\n")
    (tmp_path / "pkg/a.py").symlink_to("../real.py")
    patch = tmp_path / "x.patch"
    patch.write_bytes(git_diff(b"1\n", b"2\n"))
    assert "symbolic link" in against(patch, tmp_path).findings[-1].message
    (tmp_path / "pkg/a.py").unlink()
    assert "does not exist" in against(patch, tmp_path).findings[-1].message
    patch.write_bytes(git_diff(None, b"2\n"))
    assert against(patch, tmp_path).ok
    (tmp_path / "pkg/a.py").write_bytes(b"1\n")
    assert "exists already" in against(patch, tmp_path).findings[-1].message


@given(contents(rich=False), st.data())
@settings(max_examples=25, deadline=None)
def test_what_git_made_is_proven_where_it_was_made(old: bytes, data: st.DataObject) -> None:
    new = data.draw(edits(old, rich=False))
    assume(old != new and old)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pkg").mkdir()
        (folder / "pkg/a.py").write_bytes(old)
        patch = folder / "x.patch"
        patch.write_bytes(git_diff(old, new, "--full-index"))
        report = against(patch, folder)
        assert report.ok and report.patches[0].proven == 1
        (folder / "pkg/a.py").write_bytes(b"above\n" + old)
        assert not against(patch, folder).ok or not git_apply(b"above\n" + old, patch.read_bytes())[0]


def test_the_command_against_a_folder_and_a_manifest(tmp_path: Path, quickstart_workspace: Path) -> None:
    env = index_env(tmp_path, quickstart_workspace.parent / "store")
    words = ["patches", "lint", "verl/0.5.0", "--json", "--against"]
    said = json.loads(run_here([*words, "quickstart"], env, tmp_path).stdout)
    assert (said["ok"], said["against"], said["findings"]) == (True, "quickstart", [])
    done = run_here([*words, tmp_path], clean_env(tmp_path), tmp_path)
    assert done.returncode == 1
    assert [one["rule"] for one in json.loads(done.stdout)["findings"]] == ["does-not-apply"]
    assert run_here([*words, "no-such-manifest"], env, tmp_path).returncode == 2


def test_a_new_patch_finds_its_component(tmp_path: Path, quickstart_workspace: Path) -> None:
    """One that the lock does not have comes after all of the component that has its files."""
    env = index_env(tmp_path, quickstart_workspace.parent / "store")
    file = "verl/workers/rollout/hf_rollout.py"
    now = (quickstart_workspace / "code" / file).read_bytes()
    patch = tmp_path / "x.patch"
    patch.write_bytes(git_diff(now, b"# first\n" + now, "--full-index", path=file))
    done = run_here(["patches", "lint", patch, "--against", "quickstart"], env, tmp_path)
    assert done.returncode == 0 and "1 of 1 file proven" in done.stdout
    patch.write_bytes(git_diff(b"x\n", b"y\n", path="nowhere.py"))
    done = run_here(["patches", "lint", patch, "--against", "quickstart"], env, tmp_path)
    assert done.returncode == 1 and "No component has every file" in done.stdout
