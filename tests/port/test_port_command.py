"""`npu-rl patches port` from its begin to the new patchset."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from npu_rl.stack.patches.series import read_patchset
from npu_rl.stack.port_series import port_result
from npu_rl.stack.port_series.port_folder import PortFolder
from npu_rl.stack.port_series.port_result import place_of
from npu_rl.stack.port_series.verified_by import PatchProof
from tests.port.upstream_versions import ONE, PATCHED, TWO, Versions, header, module
from tests.support import ROOT, File, assert_told, git, ok, present


def test_a_whole_port(versions: Versions) -> None:
    """Each kind of patch, one conflict solved and one change made at its new place; the result lays with lock."""
    stopped = versions.port()
    assert stopped.returncode == 1
    table = stopped.stdout
    for name, word in (
        ("0001-exact", "ported"),
        ("0002-moved", "ported"),
        ("0003-merged", "ported"),
        ("0004-upstream", "retired: upstream has it"),
        ("0005-conflict", "conflict"),
        ("0006-gone", "waits"),
    ):
        assert f"{name}.patch: {word}\n" in table
    assert f"by commit {versions.upstream.id('main~2')} take seven upstream" in " ".join(table.split())
    assert max(len(line) for line in table.splitlines() if "/" not in line) <= 80
    assert "Why: the reason of 0005-conflict." in table and "How: by a seven." in table
    assert "Retire-When: upstream has it." in table and "npu-rl patches port up --continue" in table
    text = (versions.tree / "pkg/conflict.py").read_text()
    assert "<<<<<<< up v2\n" in text and ">>>>>>> 0005-conflict.patch\n" in text
    assert versions.git("status", "--short") == " M pkg/conflict.py"
    assert versions.git("log", "--format=%s").splitlines()[:3] == [
        f"Patch {name}" for name in ("0003-merged", "0002-moved", "0001-exact")
    ]

    assert_told(
        versions.port("--continue"), "Conflict markers of 0005-conflict.patch are left", "pkg/conflict.py"
    )
    versions.resolve("pkg/conflict.py")
    stopped = versions.port("--continue")
    assert stopped.returncode == 1
    assert "0005-conflict.patch: ported by hand\n" in stopped.stdout
    assert f"deleted by commit {versions.upstream.id('main~1')}" in stopped.stdout
    assert "pkg/new_home.py" in stopped.stdout
    assert "Missing files, which have no markers: " in stopped.stdout

    assert_told(versions.port("--continue"), "Nothing was changed for 0006-gone.patch")
    versions.edit("pkg/new_home.py", "gone_second_2 = x + 2", "gone_second_2 = x * 7")
    done = ok(versions.port("--continue"))
    assert "7 patches: 6 ported, 1 retired." in done.stdout
    assert "    ref: refs/tags/v2\n    patches: [./patches/up/2]\n" in done.stdout
    names = [f"{name}.patch" for name in PATCHED if name != "0004-upstream"]
    assert (versions.result / "series").read_text() == "# In order.\n" + "".join(
        f"{name}\n" for name in names
    )
    assert [patch.name for patch in read_patchset(versions.result)] == names
    assert "b/pkg/new_home.py" in (versions.result / "0006-gone.patch").read_text()
    assert (
        (versions.result / "0006-gone.patch")
        .read_text()
        .startswith("Subject: Patch 0006-gone\n\nWhy: the reason")
    )

    text = versions.manifest.read_text().replace("refs/tags/v1", "refs/tags/v2")
    versions.manifest.write_text(text.replace("./patches/up/v1", "./patches/up/2"))
    ok(versions.run("lock", "-m", "m.yaml"))
    lock = json.loads((versions.project / "m.lock.json").read_text())
    assert lock["components"]["up"]["result"] == versions.git("rev-parse", "HEAD^{tree}")
    assert not any("offsets" in patch for patch in lock["components"]["up"]["patches"])


def test_the_old_version_locks_as_before_where_the_new_one_is_inside_its_folder(versions: Versions) -> None:
    """`patches export` writes ./patches/up, and `port` its result into a folder of that."""
    versions.keep("0001", "0002")
    for path in list(versions.patches.iterdir()):
        path.rename(versions.patches.parent / path.name)
    text = versions.manifest.read_text().replace("./patches/up/v1", "./patches/up")
    versions.manifest.write_text(text)
    ok(versions.run("lock", "-m", "m.yaml"))
    before = (versions.project / "m.lock.json").read_bytes()
    ok(versions.port())
    assert (versions.result / "series").is_file()
    ok(versions.run("lock", "-m", "m.yaml"))
    assert (versions.project / "m.lock.json").read_bytes() == before


def test_to_the_same_version_it_is_the_identity(versions: Versions) -> None:
    done = ok(versions.port("--to", "v1", "-m", "m.yaml", "-o", "again"))
    assert "7 patches: 7 ported." in done.stdout
    assert versions.contents(versions.project / "again") == versions.contents(versions.patches)
    assert not (versions.folder / "history").exists()


def test_a_finished_port_is_shown_again_and_writes_nothing(versions: Versions) -> None:
    versions.keep("0001", "0004")
    ok(versions.port())
    before = versions.contents(versions.project)
    again = ok(versions.port())
    assert "Nothing to write: they are in" in again.stdout
    assert versions.contents(versions.project) == before


def test_without_history_commits_stay_unnamed(versions: Versions) -> None:
    versions.keep("0004", "0006")
    done = versions.port("--no-history")
    assert "0004-upstream.patch: retired" in done.stdout and "commit" not in done.stdout
    assert not (versions.folder / "history").exists()
    assert "history of" not in done.stderr


def test_a_commit_older_than_the_pin_is_named(versions: Versions) -> None:
    """The pin is a hotfix of a release branch; what it lacks was committed before it."""
    up = versions.upstream
    up.commit({"README.md": "hotfix\n"}, "hotfix", on="release", parents=["v1"], days=90)
    bringing = up.commit(
        {"pkg/upstream.py": TWO["pkg/upstream.py"]}, "take seven", on="next", parents=["v1"], days=30
    )
    deleting = up.commit({"pkg/gone.py": None}, "delete gone", on="next", days=31)
    up.commit({"README.md": "later\n"}, "later", on="next", days=120)
    text = versions.manifest.read_text().replace("refs/tags/v1", "refs/heads/release")
    versions.manifest.write_text(text)
    versions.keep("0004", "0006")
    stopped = versions.port("--to", "next", "--manifest", "m.yaml")
    assert "history of 3 commits since" in stopped.stderr
    assert f"by commit {bringing} take seven" in " ".join(stopped.stdout.split())
    assert f"deleted by commit {deleting}" in stopped.stdout


def test_the_commit_is_that_of_the_function(versions: Versions) -> None:
    """An earlier one put the same line into another function."""
    up = versions.upstream
    line = ("upstream_first_2 = x + 2", "upstream_second_2 = x * 7")
    first = module("upstream").replace(*line)
    up.commit({"pkg/upstream.py": first}, "another function", on="twin", parents=["v1"])
    second = {"pkg/upstream.py": module("upstream", second_2="x * 7").replace(*line)}
    bringing = up.commit(second, "the function", on="twin")
    versions.keep("0004")
    done = ok(versions.port("--to", "twin", "--manifest", "m.yaml"))
    assert f"by commit {bringing} the function" in " ".join(done.stdout.split())


def test_a_stop_outlives_the_collection_of_garbage(versions: Versions) -> None:
    versions.keep("0005", "0007")
    versions.port()
    versions.git("reflog", "expire", "--expire=now", "--all")
    versions.git("gc", "-q", "--prune=now")
    versions.resolve("pkg/conflict.py")
    assert "0005-conflict.patch: ported by hand" in ok(versions.port("--continue")).stdout


def test_the_size_of_the_history_is_told_before_it_is_fetched(versions: Versions) -> None:
    versions.keep("0006")
    told = versions.port().stderr
    assert "up: history of 3 commits since" in told
    assert told.index("history of 3 commits") < told.index("file version")


def test_when_every_patch_is_upstream_nothing_is_written(versions: Versions) -> None:
    versions.keep("0004")
    done = ok(versions.port())
    assert "1 patch: 1 retired." in done.stdout and "    patches: []" in done.stdout
    assert not versions.result.exists()


def test_the_json(versions: Versions) -> None:
    versions.keep("0001", "0005")
    stopped = versions.port("--json")
    assert stopped.returncode == 1
    report = json.loads(stopped.stdout)
    assert report["state"] == "stopped" and report["stopped_at"] == "0005-conflict.patch"
    assert report["to"] == {"ref": "refs/tags/v2", "commit": versions.upstream.id("main"), "version": "2"}
    assert [patch["state"] for patch in report["patches"]] == ["ported", "conflict"]
    (hunk,) = report["patches"][1]["hunks"]
    assert hunk["path"] == "pkg/conflict.py" and hunk["state"] == "conflict" and hunk["why"]
    assert report["patches"][1]["retire_when"] == "upstream has it."
    report = json.loads(ok(versions.port("--skip", "--json")).stdout)
    assert report["state"] == "finished" and report["entry"] == "./patches/up/2"
    assert [patch["state"] for patch in report["patches"]] == ["ported", "skipped"]
    assert sorted(report["written"]) == [
        str(versions.result / name) for name in ("0001-exact.patch", "series")
    ]


def test_skip_drops_the_edits_and_keeps_files_of_others(versions: Versions) -> None:
    versions.keep("0005", "0007")
    versions.port()
    versions.edit("pkg/conflict.py", "<<<<<<<", "half solved")
    (versions.tree / "notes.txt").write_text("mine\n")
    done = ok(versions.port("--skip"))
    assert "0005-conflict.patch: skipped\n" in done.stdout
    assert (versions.tree / "pkg/conflict.py").read_text() == module("conflict", second_2="x * 99")
    assert (versions.tree / "pkg/added.py").read_text() == "ADDED = 1\n"
    assert (versions.tree / "notes.txt").read_text() == "mine\n"


def test_abort_removes_the_port_and_nothing_else(versions: Versions) -> None:
    before = versions.contents(versions.project)
    versions.port()
    (versions.tree / "pkg/notes.txt").write_text("mine\n")
    done = ok(versions.port("--abort"))
    assert "left, since npu-rl did not write it: tree/pkg/notes.txt" in done.stdout
    assert versions.contents(versions.folder) == {"tree/pkg/notes.txt": b"mine\n"}
    assert_told(versions.port("--abort"), "No port of up is there", code=2)
    assert_told(versions.port(), "The folder is not empty, and has no port", code=2)
    (versions.tree / "pkg/notes.txt").unlink()
    assert versions.contents(versions.project) == before


def test_abort_of_an_untouched_port_leaves_no_folder(versions: Versions) -> None:
    versions.port()
    ok(versions.port("--abort"))
    assert not versions.folder.exists()


def test_a_new_file_is_taken_into_the_patch_once_git_knows_it(versions: Versions) -> None:
    versions.keep("0006")
    versions.port()
    (versions.tree / "pkg/helper.py").write_text("HELP = 1\n")
    (versions.tree / "pkg/__pycache__").mkdir()
    (versions.tree / "pkg/__pycache__/helper.cpython-311.pyc").write_bytes(b"code")
    versions.edit("pkg/new_home.py", "gone_second_2 = x + 2", "gone_second_2 = HELP")
    refused = versions.port("--continue")
    assert_told(refused, "The work tree has new files that are not of the patch", "pkg/helper.py", "add FILE")
    assert "pyc" not in refused.stderr
    versions.git("add", "pkg/helper.py")
    ok(versions.port("--continue"))
    text = (versions.result / "0006-gone.patch").read_text()
    assert "b/pkg/helper.py" in text and "pyc" not in text


def test_what_the_user_commits_is_taken(versions: Versions) -> None:
    versions.keep("0005")
    versions.port()
    versions.resolve("pkg/conflict.py")
    versions.git("commit", "-qam", "solved")
    ok(versions.port("--continue"))
    assert "+    conflict_second_2 = x * 7" in (versions.result / "0005-conflict.patch").read_text()


def test_a_patch_on_top_of_another_keeps_its_place(versions: Versions) -> None:
    """The second patch changes what the first one added; both come out, and apply in this order."""
    up = versions.upstream
    one = up.commit({"pkg/exact.py": module("exact", first_2="x * 7")}, on="one", parents=["v1"])
    two = up.commit({"pkg/exact.py": module("exact", first_2="x * 8")}, on="two", parents=[one])
    versions.keep("0001")
    text = "Subject: Eight\n---\n" + up.git("diff", "--full-index", one, two) + "\n"
    (versions.patches / "0002-eight.patch").write_text(text)
    (versions.patches / "series").write_text("0001-exact.patch\n0002-eight.patch # on top\n")
    ok(versions.run("lock", "-m", "m.yaml"))
    ok(versions.port())
    assert (versions.result / "series").read_text() == "0001-exact.patch\n0002-eight.patch # on top\n"
    assert (versions.tree / "pkg/exact.py").read_text() == module("exact", first_2="x * 8", third_5="x * 2")


def test_a_commit_id_and_a_branch_are_versions(versions: Versions) -> None:
    versions.keep("0001")
    oid = versions.upstream.id("main")
    done = ok(versions.port("--to", oid, "-m", "m.yaml"))
    assert f"    ref: {oid}\n    patches: [./patches/up/{oid[:7]}]" in done.stdout
    ok(versions.port("--abort"))
    done = ok(versions.port("--to", "main", "-m", "m.yaml", "--output", "other"))
    assert f"    ref: {oid}\n    patches: [./other]" in done.stdout


def test_entries_with_options_become_plain_patches(versions: Versions) -> None:
    """`strip:` and `directory:` of an entry are gone: the new patchset needs none."""
    diff = git(
        "diff",
        "--full-index",
        "--no-prefix",
        "--relative=pkg",
        "v1",
        "patched-0001-exact",
        git_dir=versions.upstream.path,
    )
    (versions.project / "bare.patch").write_text(f"Subject: Bare\n---\n{diff}\n")
    text = versions.manifest.read_text()
    entry = "{path: ./bare.patch, strip: 0, directory: pkg}"
    versions.manifest.write_text(text.replace("./patches/up/v1", entry))
    ok(versions.run("lock", "-m", "m.yaml"))
    ok(versions.port())
    assert (versions.result / "series").read_text() == "0001-bare.patch\n"
    assert "--- a/pkg/exact.py" in (versions.result / "0001-bare.patch").read_text()
    assert ONE["pkg/exact.py"] != (versions.tree / "pkg/exact.py").read_text()


def test_the_documented_json_has_the_keys_of_the_real_one(versions: Versions) -> None:
    page = (ROOT / "docs/patches.md").read_text(encoding="utf-8")
    after = page.partition("`--json` prints this at a stop")[2]
    shown = json.loads(after.partition("```text\n")[2].partition("```")[0])
    versions.keep("0001", "0006")
    real = json.loads(versions.port("--json").stdout)
    patch, (hunk,) = real["patches"][1], real["patches"][1]["hunks"]
    assert list(shown) == list(real) and list(shown["to"]) == list(real["to"])
    assert list(shown["patches"][0]) == list(patch) and list(shown["patches"][0]["hunks"][0]) == list(hunk)
    assert list(shown["patches"][0]["hunks"][0]["places"][0]) == list(hunk["places"][0])
    assert list(shown["verified"][0]) == [field.name for field in fields(PatchProof)]


def test_where_the_patchset_of_a_bundled_manifest_goes(
    versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into a checkout of npu-rl, under the name that manifests use; else into the current folder."""
    versions.keep("0001")
    ok(versions.port())
    state = replace(present(PortFolder(versions.folder).read()), is_bundled=True, manifest="quickstart")
    place = place_of(state)
    assert (place.folder, place.entry) == (ROOT / "patchsets/up/2", "up/2")
    assert place_of(replace(state, output=str(ROOT / "patchsets/up/mine"))).entry == "up/mine"
    monkeypatch.chdir(versions.project)
    assert place_of(replace(state, output=str(versions.project / "out"))).entry == "./out"
    monkeypatch.setattr(port_result, "is_checkout", lambda: False)
    place = place_of(state)
    assert (place.folder, place.entry) == (versions.result, "./patches/up/2")


def test_a_bundled_manifest_is_ported(versions: Versions) -> None:
    """Of the quickstart, whose verl comes from a package index: there is no repository to port to."""
    told = versions.port("--to", "v0.6.1", "-m", "quickstart")
    assert_told(told, "Unknown component of quickstart: up", code=2)
    words = ("patches", "port", "verl", "--to", "v0.6.1", "-m", "quickstart")
    assert_told(versions.run(*words), "verl has no repository: it is taken from a package index", code=2)
    assert not (versions.project / "npu-rl-port").exists()


def test_a_mode_that_the_patch_changes_is_kept(versions: Versions) -> None:
    """The new version's mode stays where the patch has no say in it."""
    up = versions.upstream
    mine = File(PATCHED["0002-moved"]["pkg/moved.py"], "100755")
    up.commit({"pkg/moved.py": mine}, "executable", on="with-mode", parents=["v1"])
    diff = up.git("diff", "--full-index", "v1", "with-mode")
    (versions.patches / "0002-moved.patch").write_text(f"{header('0002-moved')}{diff}\n")
    theirs = File(ONE["pkg/exact.py"], "100755")
    up.commit({"pkg/exact.py": theirs}, "theirs", on="their-mode", parents=["v2"])
    versions.keep("0001", "0002")
    ok(versions.port("--to", "their-mode", "--manifest", "m.yaml"))
    modes = dict(line.split("\t")[::-1] for line in versions.git("ls-tree", "-r", "HEAD").splitlines())
    assert modes["pkg/exact.py"].startswith("100755") and modes["pkg/moved.py"].startswith("100755")
    assert modes["pkg/merged.py"].startswith("100644")
    assert (versions.tree / "pkg/moved.py").stat().st_mode & 0o111
    result = next(versions.project.glob("patches/up/*/0002-moved.patch"))
    assert "old mode 100644\nnew mode 100755\n" in result.read_text()


def test_skip_puts_a_mode_back(versions: Versions) -> None:
    versions.keep("0005", "0006", "0007")
    versions.port()
    (versions.tree / "pkg/conflict.py").chmod(0o755)
    versions.port("--skip")
    versions.port("--skip")
    assert not (versions.tree / "pkg/conflict.py").stat().st_mode & 0o111
    assert versions.git("status", "--porcelain") == ""


def test_headers_and_files_that_a_person_adds_to_the_result_stay(versions: Versions) -> None:
    versions.keep("0001")
    ok(versions.port())
    patch, readme = versions.result / "0001-exact.patch", versions.result / "README.md"
    mine = patch.read_text().replace("Why: ", "Why: I know ")
    patch.write_text(mine)
    readme.write_text("Mine.\n")
    ok(versions.port())
    assert (patch.read_text(), readme.read_text()) == (mine, "Mine.\n")
    patch.write_text(mine.replace("x * 7", "x * 8"))
    told = versions.port()
    assert_told(told, "The folder of the new patchset has other files", "0001-exact.patch", "--output DIR")
