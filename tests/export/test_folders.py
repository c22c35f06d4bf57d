"""The folder of each component: order, numbers, what is copied into it, and the lines that the manifest needs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from npu_rl.common import bundled
from tests.export.conftest import LINES, TEN, THIRTY, Export
from tests.support import assert_told, ok
from tests.workspace.stack import build as build_odd
from tests.workspace.stack import git_in

pytestmark = pytest.mark.second  # test_whole_checkouts has the loop in the first
CORE = LINES.replace("line 10\n", "line X\n")
TREE_PATCH = """\
--- a/lib/core.py
+++ b/lib/core.py
@@ -29,3 +29,3 @@
 line 29
-line 30
+line 300
 line 31
"""


def test_a_fixup_refreshes_the_patch_and_keeps_its_header(patched: Export) -> None:
    patched.fix_up("0001-ten", lib__core_py=CORE.replace("line 20\n", "line XX\n"))
    patched.commit("Two", text="S = 2\n")
    assert patched.states()["patches/up/0001-ten.patch"] == "changed"
    written = patched.round_trip()
    text = written["patches/up/0001-ten.patch"].decode()
    assert text.startswith(f"{TEN.partition('---')[0].rstrip()}\n---\n") and "+line XX" in text
    assert written["patches/up/series"] == b"# In order.\n0001-ten.patch\n0002-two.patch\n"


def test_a_commit_over_two_components_is_split_and_reported(plain: Export) -> None:
    plain.write("other/deep/leaf.py", "L = 1\n")
    plain.write("new_at_the_top.txt", "of no component\n")
    plain.commit("Everywhere at once\n\nPatch: other/leaf\n", text="S = 3\n")
    body = plain.states()
    assert [sorted(row["components"]) for row in body["split"]] == [["other", "tree", "up"]]
    assert {row["component"]: row["path"] for row in body["patches"]} == {
        "up": "patches/up/0001-everywhere-at-once.patch",
        "other": "patches/other/0001-leaf.patch",
        "tree": "patches/tree/0001-everywhere-at-once.patch",
    }
    assert yaml.safe_load(body["lines"])["tree"] == {"patches": ["./patches/tree"]}
    plain.round_trip()


def test_a_commit_between_and_another_order_rewrite_the_series(two: Export) -> None:
    steps = two.git("log", "--reverse", "--format=%H").split()
    first = two.git("log", "--format=%H", "--grep", "Apply 0001-ten")
    two.git("checkout", "-q", first)
    two.commit("Between", text="S = 5\n")
    two.git("cherry-pick", *steps[steps.index(first) + 1 :])
    two.git("checkout", "-q", "-B", "main")
    written = two.round_trip()
    names = ["0001-ten.patch", "0002-between.patch", "0003-thirty.patch"]
    assert written["patches/up/series"].decode().split("\n")[1:-1] == names == two.files()[:-1]
    assert written["patches/up/0003-thirty.patch"] == THIRTY.encode()


def test_a_dropped_patch_goes_out_of_the_series_and_comes_back(two: Export) -> None:
    before, head = two.beside(), two.git("rev-parse", "HEAD")
    two.drop("0001-ten")
    body = two.states()
    assert (body["./patches/up/0001-ten.patch"], body["lines"]) == ("dropped", "")
    assert two.files() == ["0002-thirty.patch", "series"]
    two.git("reset", "-q", "--hard", head)
    ok(two.export())
    assert two.beside() == before
    for name in ("0001-ten", "0002-thirty"):
        two.drop(name)
    assert two.round_trip()["patches/up/series"] == b"# In order.\n"
    assert (two.code / "lib/core.py").read_text() == LINES


def test_a_bundled_patchset_that_changes_is_copied(
    two: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "data/patchsets/up/1.0"
    shipped.mkdir(parents=True)
    (tmp_path / "data/manifests").mkdir()
    header = "How: X\nUpstream-Status: pending\nVerified-By: tests/test_x.py::test_x\nNeeds-NPU: no\nRetire-When: x\n"
    for name, text in (("0001-ten.patch", TEN), ("0002-thirty.patch", THIRTY)):
        (shipped / name).write_text(text.replace("---\n", f"{header}---\n", 1))
        (two.patches / "up" / name).unlink()
    (shipped / "series").write_text("# shipped\n0001-ten.patch\n0002-thirty.patch\n")
    (two.patches / "up/series").unlink()
    monkeypatch.setattr(bundled, "data_root", lambda: tmp_path / "data")
    two.relay("up/1.0")
    before = {path: path.read_bytes() for path in shipped.iterdir()}
    two.commit("Another", text="S = 2\n")
    lines = yaml.safe_load(two.states()["lines"])
    assert lines["components"]["up"]["patches"] == ["up/1.0", "./patches/up"]
    assert two.files() == ["0003-another.patch", "series"]  # numbers continue
    two.drop("0001-ten")
    lines = yaml.safe_load(two.states()["lines"])
    assert lines["components"]["up"]["patches"] == ["./patches/up"]
    written = two.round_trip()
    assert written["patches/up/0002-thirty.patch"] == before[shipped / "0002-thirty.patch"]
    assert {path: path.read_bytes() for path in shipped.iterdir()} == before


def test_a_parents_list_is_added_to_and_its_folder_stays(patched: Export) -> None:
    child = patched.child()
    before = patched.beside()
    child.commit("Another", text="S = 2\n")
    lines = child.states()["lines"]
    assert lines == "components:\n  up:\n    patches:\n      append: [./patches/up-child]\n"
    found = child.round_trip()
    assert "patches/up-child/0002-another.patch" in found
    assert {**found, **before} == {**found, "child.yaml": before["child.yaml"]}
    child.drop("0001-ten")
    assert yaml.safe_load(child.states()["lines"])["components"]["up"]["patches"] == ["./patches/up-child"]
    found = child.round_trip()
    assert found["patches/up/0001-ten.patch"] == before["patches/up/0001-ten.patch"]


def test_a_file_of_a_components_patch_and_of_one_of_the_tree(patched: Export) -> None:
    (patched.manifest.parent / "t.patch").write_text(TREE_PATCH)
    patched.manifest.write_text(patched.manifest.read_text() + "tree: {patches: [./t.patch]}\n")
    patched.lay()
    before = patched.beside()
    assert "nothing to write" in ok(patched.export()).stdout
    assert patched.beside() == before
    core = (patched.code / "lib/core.py").read_text()
    patched.fix_up("0001-ten", lib__core_py=core.replace("line 1\n", "line 0\n"))
    written = patched.round_trip()
    assert "+line 0\n" in written["patches/up/0001-ten.patch"].decode()
    assert written["t.patch"] == before["t.patch"]
    core = (patched.code / "lib/core.py").read_text()
    patched.commit("Twenty", "lib/core.py", core.replace("line 20\n", "line 2X\n"))
    assert "patches/tree/0001-twenty.patch" in patched.round_trip()


def test_a_stack_with_everything_that_setup_lays(tmp_path: Path) -> None:
    """dist-info, the runtime, a whole checkout, odd names, patches without ids, files that code does not have."""
    stack = build_odd(tmp_path)
    paths = stack.make(tmp_path / "w")

    def git(*args: str) -> str:
        return git_in(paths.code, stack.env, *args)

    export = ("patches", "export", "-w", paths.root)
    assert "nothing to write" in ok(stack.run(*export)).stdout
    (paths.code / "gamma/__init__.py").write_text("G = 2\n")
    git("commit", "-qa", "--fixup", (at := git("log", "--format=%H", "--grep", "Apply 0001-zwei")))
    git("-c", "sequence.editor=:", "rebase", "-qi", "--autosquash", f"{at}^")
    core = (paths.code / "alpha/core.py").read_text()
    (paths.code / "alpha/core.py").write_text(core.replace("line_30 = 30", "line_30 = 31"))
    (paths.code / "alpha/two words.py").write_text("ODD = 2\n")
    (paths.code / "alpha/größe_名.py").unlink()
    git("commit", "-qam", "Thirty and odd names")
    tree, manifest = git("rev-parse", "HEAD^{tree}"), stack.old.read_bytes()
    ok(stack.run(*export))
    zwei = (tmp_path / "patches/gamma/0001-zwei.patch").read_text()
    assert "+zwei" in zwei and "+G = 2" in zwei and zwei.startswith("Subject: Gamma builds\n")
    names = (tmp_path / "patches/alpha/series").read_text().split()
    assert names == ["0001-ten.patch", "0002-half.patch", "0003-thirty-and-odd-names.patch"]
    assert stack.old.read_bytes() == manifest
    ok(stack.run("lock", "-m", stack.old))
    ok(stack.setup(paths.root))
    assert git("rev-parse", "HEAD^{tree}") == tree
    at = git("log", "--format=%H", "--grep", "Apply 0001-zwei")
    git("rebase", "-q", "--onto", f"{at}^", at)
    assert_told(stack.run(*export), "lacks the patch 0001-zwei", "It also changes build.txt")
