"""`patches port --verify`: the tests that patches name run over the ported tree, and what did not run is unproven."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.port.upstream_versions import PATCHED, Versions, header
from tests.support import assert_told, ok

TESTS = """\
import os, pathlib, pytest

def text():
    return pathlib.Path(os.environ["NPU_RL_TREE"], "pkg/exact.py").read_text()

def test_seven():
    assert "exact_first_2 = x * 7" in text()

def test_eight():
    assert "x * 8" in text()

def test_skipped():
    pytest.skip("no device")
"""
CHECK = """\
import os, pathlib, sys
print(pathlib.Path(os.environ["NPU_RL_TREE"], "pkg/added.py").read_text())
sys.exit(sys.argv[1] != os.environ["NPU_RL_TREE"])
"""


def verified_by(versions: Versions, tests: dict[str, str]) -> None:
    """Keep these patches, each with a Verified-By."""
    for name, value in tests.items():
        path = versions.patches / f"{name}.patch"
        head = header(name, Verified_By=value) if value else header(name)
        path.write_text(head + path.read_text().partition("---\n")[2])
    (versions.project / "tests").mkdir()
    (versions.project / "tests/test_tree.py").write_text(TESTS)
    (versions.project / "check.py").write_text(CHECK)
    versions.keep(*tests)


def test_green(versions: Versions) -> None:
    """A test id and a command; each is printed before it runs, and nothing runs without --verify."""
    verified_by(
        versions, {"0001-exact": "tests/test_tree.py::test_seven", "0007-new": "python check.py $NPU_RL_TREE"}
    )
    done = ok(versions.port())
    assert "Unproven until their tests have run" in done.stdout
    assert (
        "  0001-exact.patch: tests/test_tree.py::test_seven\n" in done.stdout
        and "NPU_RL_TREE" not in done.stderr
    )
    before = versions.contents(versions.project)
    done = ok(versions.port("--verify", "--python", sys.executable))
    assert "0001-exact.patch: green: " in done.stdout and "0007-new.patch: green: " in done.stdout
    assert f"NPU_RL_TREE={versions.tree} {sys.executable} -m pytest" in done.stderr
    assert versions.contents(versions.project) == before


def test_no_test_runs_at_a_stop_and_it_is_told(versions: Versions) -> None:
    versions.keep("0005")
    stopped = versions.port("--verify", "--python", sys.executable)
    assert stopped.returncode == 1 and "note: no test has run" in stopped.stderr


def test_unproven(versions: Versions) -> None:
    """A failure, a missing test, a patch without a test, and a skip; each is told when it is known."""
    verified_by(
        versions,
        {
            "0001-exact": "tests/test_tree.py::test_seven tests/test_tree.py::test_eight",
            "0002-moved": "tests/test_tree.py::test_eight tests/test_absent.py::test_x",
            "0003-merged": "",
            "0007-new": "tests/test_tree.py::test_seven tests/test_tree.py::test_skipped",
        },
    )
    done = versions.port("--verify", "--python", sys.executable, "--json")
    assert done.returncode == 1
    proofs = json.loads(done.stdout)["verified"]
    assert [(proof["patch"][:4], proof["outcome"]) for proof in proofs] == [
        ("0001", "unproven"),
        ("0002", "unproven"),
        ("0003", "unproven"),
        ("0007", "unproven"),
    ]
    why = [proof["why"] for proof in proofs]
    assert "exit status 1: 1 failed, 1 passed" in why[0]
    assert "; FAILED tests/test_tree.py::test_eight - assert" in why[0]
    assert why[1] == "its tests are not here: tests/test_absent.py"
    assert why[2] == "it has no Verified-By"
    assert "not all of it ran: 1 passed, 1 skipped" in why[3]
    assert "0001-exact.patch: unproven\n" in done.stderr


def test_a_test_that_the_port_edits_is_named(versions: Versions) -> None:
    up = versions.upstream
    up.commit({"pkg/tests/test_up.py": "def test_up():\n    pass\n"}, on="with-test", parents=["v1"])
    diff = up.git("diff", "--full-index", "v1", "with-test").replace("pkg/tests/", "tests/")
    verified_by(versions, {"0001-exact": "tests/test_up.py::test_up"})
    (versions.patches / "0002-test.patch").write_text(header("test") + diff + "\n")
    (versions.patches / "series").write_text("0001-exact.patch\n0002-test.patch\n")
    text = versions.manifest.read_text()
    versions.manifest.write_text(text.replace("to: lib}", "to: lib}, {from: tests, to: tests}"))
    up.commit({"tests/__init__.py": ""}, on="two-tests", parents=["v2"])
    up.commit({"tests/__init__.py": ""}, on="one-tests", parents=["v1"])
    versions.manifest.write_text(
        versions.manifest.read_text().replace("refs/tags/v1", "refs/heads/one-tests")
    )
    ok(versions.run("lock", "-m", "m.yaml"))
    (versions.project / "tests/test_up.py").write_text("def test_up():\n    pass\n")
    done = versions.port("--to", "two-tests", "-m", "m.yaml", "--verify", "--python", sys.executable)
    assert "0001-exact.patch: green: " in done.stdout
    assert "tests/test_up.py was edited by a patch of this port" in done.stdout


def test_a_file_that_a_command_names_and_the_port_edits_is_named(versions: Versions) -> None:
    verified_by(versions, {"0001-exact": "python -m compileall -q $NPU_RL_TREE/pkg"})
    done = versions.port("--verify", "--python", sys.executable)
    assert "pkg/exact.py was edited by a patch of this port" in done.stdout


def test_a_patch_ported_by_hand_edits_the_file_of_the_new_version(versions: Versions) -> None:
    """The file of the old patch is gone; what the hand has changed instead was not named."""
    command = "python -m py_compile $NPU_RL_TREE/pkg/{}.py"
    verified_by(versions, {"0006-gone": command.format("gone")})
    versions.port()
    versions.edit("pkg/new_home.py", "x * 3", "x * 7")
    ok(versions.port("--continue"))
    done = versions.port("--verify", "--python", sys.executable)
    assert "0006-gone.patch: unproven" in done.stdout and "edited by" not in done.stdout
    path = versions.result / "0006-gone.patch"
    path.write_text(path.read_text().replace(command.format("gone"), command.format("new_home")))
    done = versions.port("--verify", "--python", sys.executable)
    assert "0006-gone.patch: green" in done.stdout
    assert "pkg/new_home.py was edited by a patch of this port" in done.stdout


def test_a_file_that_git_ignores_is_not_of_the_ported_tree(versions: Versions) -> None:
    verified_by(versions, {"0007-new": "python check.py $NPU_RL_TREE"})
    ok(versions.port())
    (versions.tree / ".git/info").mkdir(exist_ok=True)
    (versions.tree / ".git/info/exclude").write_text("local_*.py\n")
    (versions.tree / "pkg/local_settings.py").write_text("X = 1\n")
    told = versions.port("--verify", "--python", sys.executable)
    assert_told(told, "The work tree is not the ported tree", "pkg/local_settings.py")


def test_a_test_that_changes_the_tree_proves_nothing_and_ends_the_tests(versions: Versions) -> None:
    edits = "import os, pathlib; pathlib.Path(os.environ['NPU_RL_TREE'], 'pkg/more.py').touch()"
    tests = {"0001-exact": f'python -c "{edits}"', "0007-new": "python check.py $NPU_RL_TREE"}
    verified_by(versions, tests)
    done = versions.port("--verify", "--python", sys.executable, "--json")
    proofs = json.loads(done.stdout)["verified"]
    assert [proof["outcome"] for proof in proofs] == ["unproven", "unproven"]
    assert [proof["why"] for proof in proofs] == [
        "its test changed the tree: pkg/more.py",
        "not run: a test of 0001-exact.patch has changed the tree",
    ]


def test_coloured_output_is_read_as_any_other(versions: Versions) -> None:
    verified_by(versions, {"0001-exact": "tests/test_tree.py::test_seven"})
    versions.env["FORCE_COLOR"] = "1"
    assert "0001-exact.patch: green: " in versions.port("--verify", "--python", sys.executable).stdout


def test_a_work_tree_that_was_edited_since(versions: Versions) -> None:
    versions.keep("0001")
    ok(versions.port())
    versions.edit("pkg/exact.py", "x * 7", "x * 9")
    told = versions.port("--verify", "--python", sys.executable)
    assert_told(told, "The work tree is not the ported tree", "pkg/exact.py")


@pytest.mark.parametrize("name", list(PATCHED)[:1])
def test_an_interpreter_that_is_not_there(versions: Versions, name: str, tmp_path: Path) -> None:
    verified_by(versions, {name: "tests/test_tree.py::test_seven"})
    done = versions.port("--verify", "--python", tmp_path / "absent")
    assert done.returncode == 1 and f"{name}.patch: unproven: " in done.stdout
    assert "No such file" in done.stdout


@pytest.mark.parametrize("runner", ["{bin}/pytest -q -p no:cacheprovider", "python -m unittest -q"])
def test_what_skips_is_not_green_whoever_runs_it(versions: Versions, runner: str) -> None:
    pytest_here = Path(sys.executable).with_name("pytest")
    if "pytest" in runner and not pytest_here.exists():
        pytest.skip("pytest has no script here")
    file = "skips.py" if "pytest" in runner else "skips"
    verified_by(versions, {"0007-new": f"{runner.format(bin=pytest_here.parent)} {file}"})
    skips = "import unittest\n\nclass T(unittest.TestCase):\n    @unittest.skip('no')\n    def test_a(self): pass\n"
    (versions.project / "skips.py").write_text(skips)
    ok(versions.port())
    done = versions.port("--verify", "--python", sys.executable)
    assert (
        done.returncode == 1
        and "0007-new.patch: unproven" in done.stdout
        and "not all of it ran" in done.stdout
    )
