"""`npu-rl patches lint`: releases of a manifest's component, and Python that takes too long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npu_rl.common.bounded import parse_python
from npu_rl.stack.lint.python_names import PythonChecker
from npu_rl.stack.lint.series_state import AppliedFile
from npu_rl.stack.patches.parse_patch import parse_patch
from tests.in_process import run_here
from tests.patches.helpers import git_diff
from tests.resolve.world import World, component, world
from tests.support import Repo

__all__ = ["world"]

SLOW = b"def f():\n global a\n" * 8_000  # 1.5 s in the compiler, then 3.6 s in pyflakes


def changed(before: bytes, after: bytes) -> AppliedFile:
    patch = parse_patch(git_diff(before, after, path="x.py"), name="x.patch", strip=1)
    return AppliedFile(patch.files[0], before, after, {})


def test_python_that_takes_too_long_is_left_unchecked() -> None:
    parse_python(SLOW)  # it is not among those that are too large
    checker = PythonChecker()
    try:
        (found,) = checker.findings("x.patch", changed(SLOW, b"x = 1\n" + SLOW))
        assert (found.severity.value, found.rule) == ("note", "python")
        assert found.message == "x.py was not checked: it takes more than 1 s of CPU time"
        (found,) = checker.findings("x.patch", changed(b"x = 1\n", b"x = y\n"))  # the next one is
        assert found.rule == "names"
    finally:
        checker.close()


def test_nothing_of_the_environment_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("base64", "json", "ast"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    checker = PythonChecker()
    assert [one.rule for one in checker.findings("x.patch", changed(b"x = 1\n", b"x = y\n"))] == ["names"]
    checker.close()


@pytest.fixture
def up(world: World) -> Repo:
    """An upstream with tags, of which the last is locked; one tag names no commit."""
    repo = world.upstream({"pkg/a.py": "1\n", "pkg/b.py": "b\n"})
    repo.tag("v1.9")
    repo.commit({"pkg/b.py": "c\n"})
    repo.tag("v1.10", annotated=True)
    repo.commit({"pkg/a.py": "2\n"})
    repo.tag("v2.0")
    repo.git("update-ref", "refs/tags/odd", repo.id("main:pkg/a.py"))
    world.locked({"up": component(repo)})
    return repo


def linted(world: World, before: bytes) -> tuple[dict[str, object], str]:
    world.write("x.patch", git_diff(before, b"x = 1\n", "--full-index", path="pkg/a.py"))
    words = ("patches", "lint", "x.patch", "--against", "m.yaml", "--json")
    done = run_here(words, world.env, world.root / "project")
    return {one["rule"]: one["why"] for one in json.loads(done.stdout)["findings"]}, done.stderr


def test_the_release_of_an_index_line_is_named(world: World, up: Repo) -> None:
    found, _ = linted(world, b"1\n")
    assert found["index"] == "It is that of v1.10, v1.9."
    found, _ = linted(world, b"never\n")
    assert found["index"] == ""


def test_without_the_source_no_release_is_named(world: World, up: Repo) -> None:
    linted(world, b"1\n")  # the store has what the lock names
    up.path.rename(up.path.with_name("away.git"))
    found, said = linted(world, b"1\n")
    assert found["index"] == "" and "no release is named, since its tags can't be fetched" in said
