"""A patch whose commit the user has dropped: it goes out of the manifest, or the export says why it can't."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npu_rl.common import bundled
from npu_rl.workspace.export.manifest_edit import ListEdit, edited
from tests.export.conftest import LINES, TEN, Export, build
from tests.export.test_entries import exported_twice, relaid
from tests.support import assert_told, ok

THIRTY = TEN.replace("Ten is X", "Thirty").replace("-8,5 +8,5", "-28,5 +28,5").replace("line 10", "line 30")
for old, new in (
    ("line 8", "line 28"),
    ("line 9", "line 29"),
    ("line 11", "line 31"),
    ("line 12", "line 32"),
):
    THIRTY = THIRTY.replace(f" {old}\n", f" {new}\n")
TWO = {"0001-ten.patch": TEN, "0002-thirty.patch": THIRTY}
HEADER = (
    "How: X\nUpstream-Status: pending\nVerified-By: tests/test_x.py::test_x\nNeeds-NPU: no\nRetire-When: never\n"
    "---\ndiff"
)


@pytest.fixture
def two(tmp_path: Path) -> Export:
    return build(tmp_path, TWO)


def dropped(stack: Export, name: str) -> None:
    """Drop the commit of a patch, as `git rebase -i` does."""
    at = stack.git("log", "--format=%H", "--grep", f"Apply {name}")
    stack.git("rebase", "-q", "--onto", f"{at}^", at)


def states(stack: Export) -> dict[str, str]:
    rows = json.loads(ok(stack.export("--json")).stdout)["patches"]
    return {row["patch"]: row["state"] for row in rows}


def test_a_patch_of_a_folder_goes_out_of_its_series(two: Export) -> None:
    dropped(two, "0001-ten")
    tree, text = two.tree(), two.manifest.read_text()
    assert states(two) == {"0002-thirty.patch": "unchanged", "0001-ten.patch": "dropped"}
    assert two.manifest.read_text() == text
    assert (two.patches / "up/series").read_text() == "# In order.\n0002-thirty.patch\n"
    assert not (two.patches / "up/0001-ten.patch").exists()
    assert states(two) == {"0002-thirty.patch": "unchanged"}
    two.lay()
    assert two.tree() == tree


def test_a_patch_comes_back_with_its_commit(two: Export) -> None:
    before, head = two.beside(), two.git("rev-parse", "HEAD")
    for gone in (("0001-ten",), ("0001-ten", "0002-thirty")):
        for name in gone:
            dropped(two, name)
        ok(two.export())
        assert not any((two.patches / f"up/{name}.patch").exists() for name in gone)
        two.git("reset", "-q", "--hard", head)
        assert set(states(two).values()) == {"unchanged"}
        found = two.beside()
        series = found.pop("patches/up/series").decode()
        assert [line for line in series.splitlines() if line != "# In order."] == list(TWO)
        assert found == {name: data for name, data in before.items() if name != "patches/up/series"}
    dropped(two, "0001-ten")
    ok(two.export())
    two.git("reset", "-q", "--hard", head)
    (two.patches / "up/series").write_text("# by hand\n0002-thirty.patch\n")
    assert_told(two.export(), "no longer lists the patch 0001-ten")


def test_a_single_file_comes_back_where_it_is_entered(two: Export) -> None:
    for name, text in TWO.items():
        (two.manifest.parent / name).write_text(text)
    relaid(two, "./0001-ten.patch, ./0002-thirty.patch")
    before, head = two.beside(), two.git("rev-parse", "HEAD")
    dropped(two, "0001-ten")
    ok(two.export())
    two.git("reset", "-q", "--hard", head)
    told = two.export()
    assert_told(told, "An earlier export removed the patch 0001-ten, whose commit is back")
    assert "Enter ./0001-ten.patch in `patches:` again" in " ".join(told.stderr.split())
    two.manifest.write_bytes(before["m.yaml"])
    ok(two.export())
    assert two.beside() == before


def test_the_last_patch_of_a_folder_leaves_an_empty_series(patched: Export) -> None:
    dropped(patched, "0001-ten")
    patched.round_trip()
    assert (patched.patches / "up/series").read_text() == "# In order.\n"
    assert (patched.code / "lib/core.py").read_text() == LINES


def test_another_patch_may_take_its_name(patched: Export) -> None:
    dropped(patched, "0001-ten")
    patched.write("lib/core.py", LINES.replace("line 10\n", "line Z\n"))
    patched.commit("Ten again\n\nPatch: up/ten\n")
    tree = patched.tree()
    # The trailer names the patch of the lock: it is that patch, changed and moved to the end.
    assert states(patched) == {"0001-ten.patch": "changed"}
    patched.lay()
    assert patched.tree() == tree
    dropped_then_new(patched)


def dropped_then_new(stack: Export) -> None:
    dropped(stack, "0001-ten")
    stack.write("lib/same.py", "S = 2\n")
    stack.commit("Something else")
    before = stack.round_trip()
    assert "patches/up/0001-something-else.patch" in before and "patches/up/0001-ten.patch" not in before


def test_a_single_file_goes_out_of_the_list(two: Export) -> None:
    for name, text in TWO.items():
        (two.manifest.parent / name).write_text(text)
    relaid(two, "./0001-ten.patch, {path: ./0002-thirty.patch, strip: 1}")
    dropped(two, "0001-ten")
    text = exported_twice(two)
    assert "    patches: [{path: ./0002-thirty.patch, strip: 1}]\n" in text
    assert not (two.manifest.parent / "0001-ten.patch").exists()
    dropped(two, "0002-thirty")
    assert "    patches: []\n" in exported_twice(two)


def test_a_bundled_patchset_is_copied_without_it(
    two: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "data/patchsets/up/1.0"
    shipped.mkdir(parents=True)
    (tmp_path / "data/manifests").mkdir()
    for name, text in TWO.items():
        (shipped / name).write_text(text.replace("---\ndiff", HEADER))
    (shipped / "series").write_text("# shipped\n0001-ten.patch\n0002-thirty.patch\n")
    monkeypatch.setattr(bundled, "data_root", lambda: tmp_path / "data")
    relaid(two, "up/1.0")
    before = {path: path.read_bytes() for path in shipped.iterdir()}
    dropped(two, "0001-ten")
    assert "patches: [./patches/up-" in exported_twice(two)
    (folder,) = (p for p in two.patches.iterdir() if p.name != "up")
    assert sorted(p.name for p in folder.iterdir()) == ["0002-thirty.patch", "series"]
    assert (folder / "0002-thirty.patch").read_bytes() == before[shipped / "0002-thirty.patch"]
    relaid_bundled(two, folder.name)
    dropped(two, "0001-ten")
    dropped(two, "0002-thirty")
    assert "    patches: []\n" in exported_twice(two)
    assert {path: path.read_bytes() for path in shipped.iterdir()} == before


def relaid_bundled(stack: Export, folder: str) -> None:
    stack.manifest.write_text(stack.manifest.read_text().replace(f"[./patches/{folder}]", "[up/1.0]"))
    stack.lay()


def test_what_was_squashed_into_another_goes_out_too(two: Export) -> None:
    at = two.git("log", "--format=%H", "--grep", "Apply 0002-thirty")
    squash = f"sequence.editor=sed -i 's/^pick {at[:7]}/fixup {at[:7]}/'"
    two.git("-c", squash, "rebase", "-qi", f"{at}~2")
    tree = two.tree()
    assert states(two) == {"0001-ten.patch": "changed", "0002-thirty.patch": "dropped"}
    two.lay()
    assert two.tree() == tree


def test_a_file_that_was_changed_by_hand_is_not_removed(two: Export) -> None:
    dropped(two, "0001-ten")
    mine = two.patches / "up/0001-ten.patch"
    mine.write_text("# by hand\n" + mine.read_text())
    before = two.beside()
    assert_told(two.export(), "0001-ten.patch is neither the lock's nor an earlier export's")
    assert two.beside() == before


def test_a_parents_files_stay(two: Export) -> None:
    child = two.manifest.with_name("child.yaml")
    child.write_text("schema: 1\nname: child\ntitle: mine\nextends: ./m.yaml\n")
    before = two.beside()
    dropped(two, "0001-ten")
    done = two.run("patches", "export", "-m", child, "-w", two.workspace)
    assert_told(done, "belongs to the manifest that this one extends")
    assert two.beside() == before
    two.git("reset", "-q", "--hard", "ORIG_HEAD")
    for name, text in TWO.items():
        (two.manifest.parent / name).write_text(text)
    relaid(two, "./0001-ten.patch, ./0002-thirty.patch")
    dropped(two, "0001-ten")
    ok(two.run("patches", "export", "-m", child, "-w", two.workspace))
    assert child.read_text().endswith("    patches: [./0002-thirty.patch]\n")
    assert (two.manifest.parent / "0001-ten.patch").is_file()


BLOCK = (
    "components:\n  a:\n    patches:   # all\n    # one\n    - ./x  # 1\n    - path: ./y\n      strip: 0\n"
    "    # end\n    - ./z\n"
)
REMOVED = [
    ("components: {a: {patches: [./x, ./y, ./z]}}\n", {0, 1}, [], "components: {a: {patches: [./z]}}\n"),
    ("components: {a: {patches: [./x, ./y, ./z]}}\n", {0, 2}, [], "components: {a: {patches: [./y]}}\n"),
    (
        "components: {a: {patches: [./x, ./y, ./z]}}\n",
        {1, 2},
        ["./p"],
        "components: {a: {patches: [./x, ./p]}}\n",
    ),
    ("components: {a: {patches: [ ./x ]}}\n", {0}, ["./p"], "components: {a: {patches: [ ./p ]}}\n"),
    (BLOCK, {1}, [], BLOCK.replace("    - path: ./y\n      strip: 0\n", "")),
    (BLOCK, {2}, ["./p"], BLOCK.replace("./z", "./p")),
    (
        BLOCK,
        {0, 1, 2},
        [],
        "components:\n  a:\n    patches: []   # all\n    # one\n    # end\n",
    ),
]


@pytest.mark.parametrize(("text", "removed", "added", "expected"), REMOVED)
def test_only_the_entries_go(text: str, removed: set[int], added: list[str], expected: str) -> None:
    done = edited(text.encode(), [ListEdit("a", [], {}, added, frozenset(removed))], "m.yaml")
    assert done.decode() == expected


def test_an_inherited_entry_that_goes_takes_the_list_over() -> None:
    text = "extends: y\ncomponents:\n  a:\n    patches: {append: [./own]}\n"
    done = edited(text.encode(), [ListEdit("a", ["b/1", "c/1"], {}, [], frozenset([0]))], "m").decode()
    assert done == text.replace("{append: [./own]}", "[c/1, ./own]")
    done = edited(text.encode(), [ListEdit("a", ["b/1"], {}, [], frozenset([1]))], "m").decode()
    assert done == text.replace("[./own]", "[]")
