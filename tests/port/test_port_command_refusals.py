"""What `patches port` refuses: each is named, and the port, the manifest and its patches stay as they were."""

from __future__ import annotations

import fcntl
import json
import os
import shutil

import pytest

from tests.port.upstream_versions import Versions, header, module
from tests.support import Repo, assert_told, ok


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [
        (("--to", "v9"), ("up has no version v9", "has no tag or branch v9"), 1),
        (("--to", "abcdef12"), ("up has no version abcdef12", "all its 40 digits"), 1),
        (("--to", "-x..y"), ("Invalid ref",), 2),
        (("--to", "v2", "--verify"), ("--verify and --python need each other",), 2),
        (("--continue", "--skip"), ("exclude each other",), 2),
        (("--continue",), ("No port of up is there", "--to REF"), 2),
    ],
)
def test_options(versions: Versions, options: tuple[str, ...], words: tuple[str, ...], code: int) -> None:
    before = versions.contents(versions.project)
    assert_told(versions.port("-m", "m.yaml", *options), *words, code=code)
    assert versions.contents(versions.project) == before


def test_a_missing_version_and_an_unknown_component(versions: Versions) -> None:
    assert_told(versions.run("patches", "port", "up", "-m", "m.yaml"), "Missing option --to", code=2)
    told = versions.run("patches", "port", "vllm", "--to", "v2", "-m", "m.yaml")
    assert_told(told, "Unknown component of m: vllm", "Name one of these: up", code=2)


def test_a_lock_that_is_missing_or_older_than_the_manifest(versions: Versions) -> None:
    text = versions.manifest.read_text()
    versions.manifest.write_text(text.replace("one component", "another title"))
    again = f"npu-rl lock --manifest {versions.manifest}\n"
    assert_told(versions.port(), "m has changed since its lock was made", again)
    (versions.project / "m.lock.json").unlink()
    assert_told(versions.port(), "This manifest has no lock", again)


def test_a_patch_of_another_repository(versions: Versions) -> None:
    """Put in the place of a locked one it is refused by name, before anything is fetched."""
    foreign = f"{header('foreign')}--- a/src/else.c\n+++ b/src/else.c\n@@ -1 +1 @@\n-int x;\n+int y;\n"
    (versions.patches / "0003-merged.patch").write_text(foreign)
    told = versions.port()
    assert_told(
        told, "0003-merged of up was changed after the lock was made", "0003-merged.patch", "npu-rl lock"
    )
    assert not versions.folder.exists()
    assert (versions.patches / "0003-merged.patch").read_text() == foreign


def test_a_version_of_another_repository(
    versions: Versions, tmp_path_factory: pytest.TempPathFactory
) -> None:
    up = versions.upstream
    up.commit({"src/else.c": "int x;\n"}, on="foreign", parents=[])
    assert_told(versions.port("--to", "foreign", "-m", "m.yaml"), "up takes nothing at foreign", "pkg")
    assert not versions.folder.exists()


def test_two_patches_with_one_name(versions: Versions) -> None:
    other = versions.project / "patches/more"
    other.mkdir()
    shutil.copy(versions.patches / "0007-new.patch", other / "0001-exact.patch")
    (other / "series").write_text("0001-exact.patch\n")
    versions.keep("0001")
    text = versions.manifest.read_text()
    versions.manifest.write_text(text.replace("[./patches/up/v1]", "[./patches/up/v1, ./patches/more]"))
    ok(versions.run("lock", "-m", "m.yaml"))
    told = versions.port()
    assert_told(
        told, "Two patches would be named 0001-exact.patch", "./patches/more/0001-exact.patch", "Rename one"
    )


def test_a_dirty_work_tree(versions: Versions) -> None:
    """A file of somebody else lies where a patch makes one: it stays, and the port goes on once it is moved."""
    versions.keep("0005", "0007")
    versions.port()
    versions.resolve("pkg/conflict.py")
    versions.git("add", "pkg/conflict.py")
    (versions.tree / "pkg/added.py").write_text("MINE = 1\n")
    told = versions.port("--skip")
    assert_told(told, "Files of the work tree have changes that are in no patch", "pkg/added.py")
    assert (versions.tree / "pkg/added.py").read_text() == "MINE = 1\n"
    (versions.tree / "pkg/added.py").rename(versions.root / "mine.py")
    assert "0007-new.patch: ported" in ok(versions.port("--skip")).stdout


def test_a_pin_that_is_gone_from_the_upstream(versions: Versions) -> None:
    """The store has what the lock pins; only the history lacks its beginning."""
    moved = Repo(versions.root / "rewritten.git")
    moved.commit({"pkg/__init__.py": "", "pkg/exact.py": module("exact")}, "a new beginning")
    moved.tag("v2")
    rule = f"{versions.upstream.url}={moved.url}"
    versions.keep("0001", "0006")
    told = versions.port("--rewrite", rule)
    assert_told(told, "The history of up between", "can't be fetched", "--no-history")
    done = versions.port("--rewrite", rule, "--no-history")
    assert "0006-gone.patch: conflict" in done.stdout
    shutil.rmtree(versions.root / "machine/store")
    ok(versions.port("--abort"))
    assert_told(versions.port("--rewrite", rule), "No source delivered up")


@pytest.mark.parametrize("moves", [True, False])
def test_a_history_that_is_rewritten_meanwhile(versions: Versions, moves: bool) -> None:
    """The tag names another commit when the port goes on, or is gone: told, and the port stays with its own."""
    up = versions.upstream.copy(versions.root / "copy.git")
    rule = f"{versions.upstream.url}={up.url}"
    versions.keep("0001", "0005", "0006")
    versions.port("--rewrite", rule)
    began = up.id("v2^{}")
    if moves:
        up.tag("v2", at=up.commit({"pkg/conflict.py": "x = 1\n"}, "again", on="again", parents=["v1"]))
    else:
        up.git("update-ref", "-d", "refs/tags/v2")
    versions.resolve("pkg/conflict.py")
    stopped = versions.port("--continue", "--rewrite", rule)
    how = "is at" if moves else "no longer exists"
    assert f"note: refs/tags/v2 of up {how}" in stopped.stderr
    assert f"this port stays with {began[:12]}" in stopped.stderr
    assert "0005-conflict.patch: ported by hand" in stopped.stdout
    assert ok(versions.port("--skip", "--rewrite", rule)).stdout.count("hunk 1") == 3
    assert (versions.tree / "pkg/exact.py").read_text() == module("exact", first_2="x * 7", third_5="x * 2")


def test_a_version_without_the_letter_of_its_tag(versions: Versions) -> None:
    versions.upstream.tag("v1.4.0", at="v2")
    told = versions.port("--to", "1.4.0", "-m", "m.yaml")
    assert_told(told, "up has no version 1.4.0", "Did you mean v1.4.0?")


def test_a_finished_port_in_the_folder(versions: Versions) -> None:
    versions.keep("0001")
    ok(versions.port())
    told = versions.port("--to", "v1", "-m", "m.yaml")
    assert_told(told, "has a finished port of up to v2", "keeps the new patchset", "--abort", code=2)
    ok(versions.port("--abort"))
    assert (versions.result / "series").read_text() == "0001-exact.patch\n"


def test_another_port_in_the_folder(versions: Versions) -> None:
    versions.port()
    before = versions.contents(versions.folder)
    told = versions.port("--to", "v1", "-m", "m.yaml")
    assert_told(told, "The folder has a port of up to v2", "--abort", "--folder DIR", code=2)
    assert versions.contents(versions.folder) == before
    assert versions.port("--to", "refs/tags/v2", "-m", "m.yaml").returncode == 1


def test_a_folder_of_somebody_else(versions: Versions) -> None:
    versions.folder.mkdir(parents=True)
    (versions.folder / "thesis.txt").write_text("mine\n")
    assert_told(versions.port(), "The folder is not empty, and has no port", "--folder DIR", code=2)
    assert_told(versions.port("--abort"), "No port of up is there", code=2)
    assert versions.contents(versions.folder) == {"thesis.txt": b"mine\n"}


def test_a_port_that_another_command_works_on(versions: Versions) -> None:
    versions.port()
    with (versions.folder / "lock").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert_told(versions.port("--skip"), "Another command works on this port")
    assert versions.port("--skip").returncode == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (b'{"port_format": 9}', ("another version of npu-rl", "Its format is 9")),
        (b"{", ("edited or damaged",)),
        (b'"base": "../../x"', ("edited or damaged", "base")),
        (b'"status": "done"', ("edited or damaged", "done")),
    ],
)
def test_a_damaged_state(versions: Versions, change: bytes, words: tuple[str, ...]) -> None:
    versions.keep("0005")
    versions.port()
    state = versions.folder / "npu-rl-port.json"
    if change.startswith(b"{"):
        state.write_bytes(change)
    else:
        facts = json.loads(state.read_text())
        key, value = json.loads(b"{%s}" % change).popitem()
        (facts if key in facts else facts["patches"][0])[key] = value
        state.write_text(json.dumps(facts))
    before = versions.contents(versions.folder)
    for option in ("--continue", "--skip", "--abort"):
        assert_told(versions.port(option, "-m", "m.yaml"), *words)
    assert versions.contents(versions.folder) == before


def test_files_of_others_where_the_patchset_goes(versions: Versions) -> None:
    versions.keep("0001")
    versions.result.mkdir(parents=True)
    (versions.result / "0001-exact.patch").write_text("of somebody else\n")
    told = versions.port()
    assert_told(told, "The folder of the new patchset has other files", "0001-exact.patch", "--output DIR")
    assert versions.contents(versions.result) == {"0001-exact.patch": b"of somebody else\n"}
    ok(versions.port("--output", "elsewhere"))
    assert sorted(os.listdir(versions.project / "elsewhere")) == ["0001-exact.patch", "series"]


def test_a_component_without_a_repository(versions: Versions) -> None:
    text = versions.manifest.read_text()
    lines = [line for line in text.splitlines() if "ref:" not in line]
    source = f'[{{git: "{versions.upstream.url}"}}]'
    versions.manifest.write_text("\n".join(lines).replace(source, "[{pypi: up==1.0}]") + "\n")
    lock = versions.project / "m.lock.json"
    before = lock.read_bytes()
    assert_told(versions.port(), "m has changed since its lock was made")
    assert lock.read_bytes() == before


def test_a_change_that_no_patch_can_hold_is_refused_while_it_can_be_undone(versions: Versions) -> None:
    """At the end of the series nothing but --abort was left."""
    versions.keep("0005")
    versions.port()
    versions.resolve("pkg/conflict.py")
    link = versions.tree / "pkg/link.py"
    link.symlink_to("exact.py")
    versions.git("add", "pkg/link.py")
    for _ in range(2):
        assert_told(versions.port("--continue"), "symlink", "pkg/link.py")
    link.unlink()
    versions.git("add", "-A", "pkg")
    assert "1 patch: 1 ported." in ok(versions.port("--continue")).stdout


def test_a_file_that_git_ignores_counts_once_it_is_added(versions: Versions) -> None:
    versions.keep("0005")
    versions.port()
    versions.resolve("pkg/conflict.py")
    (versions.tree / ".git/info").mkdir(exist_ok=True)
    (versions.tree / ".git/info/exclude").write_text("*.json\n")
    (versions.tree / "pkg/d.json").write_text("1\n")
    (versions.tree / "pkg/other.json").write_text("2\n")
    versions.git("add", "-f", "pkg/d.json")
    ok(versions.port("--continue"))
    text = (versions.result / "0005-conflict.patch").read_text()
    assert "+++ b/pkg/d.json" in text and "other.json" not in text


def test_a_port_whose_repository_is_gone(versions: Versions) -> None:
    versions.port()
    shutil.rmtree(versions.tree / ".git")
    told = versions.port("--continue")
    assert_told(told, "The repository of this port is gone", str(versions.tree / ".git"), "--abort")
    ok(versions.port("--abort"))
    assert not versions.folder.joinpath("npu-rl-port.json").exists()
