"""`npu-rl patches port`: a rebase that the user goes on with by git, and the new patchset."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from npu_rl.stack.patches.series import read_patchset
from tests.port.upstream_versions import PATCHED, Versions, module
from tests.support import assert_told, hostile_user, ok


def outcomes(stdout: str) -> dict[str, str]:
    """The outcome of each patch in a JSON report."""
    return {one["patch"].removesuffix(".patch"): one["outcome"] for one in json.loads(stdout)["patches"]}


@pytest.mark.parametrize("hostile", [False, True])
def test_a_whole_port(versions: Versions, hostile: bool, tmp_path: Path) -> None:
    """Each kind of patch; the result locks to the tree of the rebase. HOME is empty, or has a hostile ~/.gitconfig."""
    marks = None
    if hostile:
        variables, marks = hostile_user(tmp_path / "hostile")
        versions.env |= variables
    stopped = versions.port("--json")
    assert stopped.returncode == 1
    stop = json.loads(stopped.stdout)
    assert (stop["state"], stop["stopped_at"]) == ("stopped", "0005-conflict.patch")
    assert stop["conflicts"] == ["pkg/conflict.py"]
    assert stop["header"]["Retire-When"] == "upstream has it."
    assert "<<<<<<< " in (versions.folder / "pkg/conflict.py").read_text()
    assert json.loads(versions.finish("--json").stdout) == stop  # as before: the rebase has not ended

    versions.resolve("pkg/conflict.py")
    versions.git("rebase", "--continue")
    assert not (versions.folder / ".git/rebase-merge").exists()
    tree = versions.git("rev-parse", "port^{tree}").strip()
    done = ok(versions.finish("--json"))
    assert outcomes(done.stdout) == {
        "0001-exact": "carried",
        "0002-moved": "moved",
        "0003-merged": "carried",
        "0004-upstream": "upstream has it",
        "0005-conflict": "changed by hand",
        "0006-renamed": "moved",
        "0007-new": "carried",
    }
    assert not versions.folder.exists()
    if marks is not None:
        assert not (marks / "ran").exists()
    names = [f"{name}.patch" for name in PATCHED if name != "0004-upstream"]
    assert (versions.result / "series").read_text() == "# In order.\n" + "".join(f"{n}\n" for n in names)
    assert [patch.name for patch in read_patchset(versions.result)] == names
    for name in names:
        text = (versions.result / name).read_text()
        assert text.startswith(f"Subject: Patch {name.removesuffix('.patch')}\n\nWhy: the reason")
    assert "b/pkg/new_home.py" in (versions.result / "0006-renamed.patch").read_text()
    text = versions.manifest.read_text().replace("refs/tags/v1", json.loads(done.stdout)["ref"])
    versions.manifest.write_text(text.replace("./patches/up/v1", json.loads(done.stdout)["entry"]))
    ok(versions.run("lock", "-m", "m.yaml"))
    lock = json.loads((versions.project / "m.lock.json").read_text())
    assert lock["components"]["up"]["result"] == tree


def test_without_a_stop_one_command_does_it_all(versions: Versions) -> None:
    versions.keep("0001", "0002")
    before = versions.contents(versions.project)
    done = ok(versions.port())
    assert "    ref: refs/tags/v2\n    patches: [./patches/up/2]\n" in done.stdout
    new = {f"patches/up/2/{name}" for name in ("0001-exact.patch", "0002-moved.patch", "series")}
    assert versions.contents(versions.project).keys() == before.keys() | new
    assert_told(versions.port(), "The folder of the new patchset is not empty", "--output DIR")
    assert not versions.folder.exists()
    ok(versions.port("--output", "again"))


def test_to_the_same_version_it_is_the_identity(versions: Versions) -> None:
    done = ok(versions.port("--to", "v1", "-m", "m.yaml", "-o", "again", "--json"))
    assert set(outcomes(done.stdout).values()) == {"carried"}
    assert versions.contents(versions.project / "again") == versions.contents(versions.patches)


@pytest.mark.second
def test_a_skipped_patch_and_one_that_upstream_has(versions: Versions) -> None:
    versions.keep("0004", "0005")
    versions.port()
    versions.git("rebase", "--skip")
    assert outcomes(ok(versions.finish("--json")).stdout) == {
        "0004-upstream": "upstream has it",
        "0005-conflict": "skipped",
    }
    assert not versions.result.exists()  # no patch is left


@pytest.mark.second
def test_a_resolution_is_remembered_in_the_store(versions: Versions) -> None:
    """The next port of the same patches has no stop, and says that a person has changed the patch."""
    versions.keep("0005")
    versions.port()
    versions.resolve("pkg/conflict.py")
    versions.git("rebase", "--continue")
    ok(versions.finish())
    again = ok(versions.port("--output", "again", "--json"))
    assert outcomes(again.stdout) == {"0005-conflict": "changed by hand"}
    assert versions.contents(versions.project / "again") == versions.contents(versions.result)


@pytest.mark.second
def test_work_in_no_patch_is_kept(versions: Versions) -> None:
    versions.keep("0005")
    versions.port()
    versions.resolve("pkg/conflict.py")
    versions.git("rebase", "--continue")
    (versions.folder / "notes.txt").write_text("mine\n")
    (versions.folder / "pkg/__pycache__").mkdir()
    (versions.folder / "pkg/__pycache__/a.pyc").write_text("byte code")
    versions.git("branch", "mine")
    told = versions.finish()
    assert_told(told, "has work that is in no patch", "notes.txt", "refs/heads/mine")
    assert "pyc" not in told.stderr
    versions.git("branch", "-d", "mine")
    versions.git("add", "notes.txt")
    versions.git("commit", "-qm", "Notes")
    assert_told(versions.finish(), "(Notes) is of no patch")
    versions.git("reset", "-q", "--soft", "HEAD^")
    versions.git("commit", "-q", "--fixup", "HEAD")
    versions.git("rebase", "-q", "-i", "--autosquash", "refs/npu-rl/new")
    ok(versions.finish())
    assert "b/notes.txt" in (versions.result / "0005-conflict.patch").read_text()


@pytest.mark.second
def test_a_place_in_another_function_needs_a_person(versions: Versions) -> None:
    """The function is renamed around the lines that git finds."""
    up = versions.upstream
    renamed = module("exact").replace("def exact_first", "def exact_other")
    up.commit({"pkg/exact.py": renamed}, on="renamed", parents=["v1"])
    versions.keep("0001")
    asked = versions.port("--to", "renamed", "-m", "m.yaml")
    assert asked.returncode == 1 and "it was in exact_first, and is in exact_other now" in asked.stdout
    assert versions.folder.is_dir() and not (versions.project / "patches/up").joinpath("renamed").exists()
    assert "it was in exact_first" in versions.finish().stdout
    assert_told(versions.finish("--accept", "0002-x.patch"), "Unknown patch 0002-x.patch", code=2)
    done = ok(versions.finish("--accept", "0001-exact.patch", "--output", "new"))
    assert "patches: [./new]" in done.stdout and not versions.folder.exists()


@pytest.mark.second
def test_a_name_that_upstream_has_removed_is_an_error(versions: Versions) -> None:
    up = versions.upstream
    up.commit(
        {"pkg/use.py": "import math\n\n\ndef area(r):\n    return r\n\n\nX = math.pi\n"},
        on="w1",
        parents=["v1"],
    )
    up.commit({"pkg/use.py": "def area(r):\n    return r\n\n\nX = 3\n"}, on="w2", parents=["w1"])
    versions.keep("0001")
    versions.manifest.write_text(versions.manifest.read_text().replace("refs/tags/v1", "refs/heads/w1"))
    patched = "import math\n\n\ndef area(r):\n    return r * math.pi\n\n\nX = math.pi\n"
    versions.add_patch("0002-area", "w1", {"pkg/use.py": patched})
    asked = json.loads(versions.port("--to", "w2", "-m", "m.yaml", "--json").stdout)
    (question,) = asked["patches"][1]["questions"]
    assert asked["state"] == "questions" and question.startswith("error: ") and "math" in question


@pytest.mark.second
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_the_folder_of_another_user_runs_nothing(versions: Versions, tmp_path: Path) -> None:
    versions.keep("0005")
    versions.port()
    versions.resolve("pkg/conflict.py")
    versions.git("rebase", "--continue")
    mark = tmp_path / "ran"
    with (versions.folder / ".git/config").open("a") as config:
        config.write(f'[filter "x"]\n\tclean = "touch {mark}; cat"\n')
    (versions.folder / ".git/info/attributes").write_text("* filter=x\n")
    (versions.folder / "pkg/conflict.py").write_text("x = 1\n")
    everything = [versions.folder, *versions.folder.rglob("*")]
    for path in everything:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    assert_told(versions.finish(), f"The port {versions.folder} belongs to another user", code=3)
    assert_told(versions.port(), "The folder of the port exists", code=2)
    for path in everything:
        os.chown(path, 0, 0, follow_symlinks=False)
    assert_told(versions.finish(), "has work that is in no patch", "pkg/conflict.py")
    assert not mark.exists()
    versions.git("status")
    assert mark.exists()  # what git itself would do in that folder


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [
        (("--to", "v9"), ("up has no version v9", "refs/heads/v9"), 1),
        (("--to", "foreign"), ("up takes nothing at foreign", "pkg"), 1),
        (("--to", "v2", "--finish"), ("--to or --finish is needed",), 2),
        (("--to", "v2", "--accept", "x"), ("--accept needs --finish",), 2),
        (("--finish",), ("No port of up is there", "--to REF"), 2),
    ],
)
def test_what_is_refused_changes_nothing(
    versions: Versions, options: tuple[str, ...], words: tuple[str, ...], code: int
) -> None:
    if "foreign" in options:
        versions.upstream.commit({"src/else.c": "int x;\n"}, on="foreign", parents=[])
    before = versions.contents(versions.project)
    assert_told(versions.port("-m", "m.yaml", *options), *words, code=code)
    assert versions.contents(versions.project) == before
