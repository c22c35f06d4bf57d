"""Where patches go: a single file in place, a bundled patchset into a copy, a parent's list by `append`."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common import bundled
from npu_rl.common.errors import ManifestError
from npu_rl.stack.patches.patch_names import slug_of_subject
from npu_rl.stack.patches.series_file import with_names
from npu_rl.workspace.export.manifest_edit import ListEdit, edited
from npu_rl.workspace.export.patch_writer import header_text
from tests.export.conftest import LINES, TEN, Export
from tests.export.test_histories import fixed_up
from tests.support import ROOT, assert_told, ok

CORE = LINES.replace("line 10\n", "line X\n")


def relaid(stack: Export, entry: str) -> None:
    """Replace the entry of `up` and lay the stack again."""
    stack.manifest.write_text(stack.manifest.read_text().replace("[./patches/up]", f"[{entry}]"))
    stack.lay()


def exported_twice(stack: Export) -> str:
    """Export, lock and set up, and export again without a change. Returns the manifest."""
    before = stack.round_trip()
    ok(stack.export())
    assert stack.beside() == before | {"m.lock.json": stack.beside()["m.lock.json"]}
    return stack.manifest.read_text()


def test_a_single_file_is_refreshed_in_place(patched: Export) -> None:
    single = patched.manifest.parent / "fix.patch"
    single.write_text(TEN.replace("a/pkg/", "").replace("b/pkg/", ""))
    relaid(patched, "{path: ./fix.patch, strip: 0, directory: pkg}")
    at = patched.git("log", "--format=%H", "--grep", "Apply fix")
    patched.write("lib/core.py", CORE.replace("line 30\n", "line 3X\n"))
    patched.git("add", "-A")
    patched.git("commit", "-q", "--fixup", at)
    patched.git("-c", "sequence.editor=:", "rebase", "-qi", "--autosquash", f"{at}^")
    patched.write("lib/same.py", "S = 2\n")
    patched.commit("Another")
    text = exported_twice(patched)
    assert "+line 3X" in single.read_text() and "--- core.py\n" in single.read_text()
    assert "[{path: ./fix.patch, strip: 0, directory: pkg}, ./patches/up-2]" in text


def test_a_bundled_patch_is_copied_first(
    patched: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    shipped = data / "patchsets/up/1.0"
    shipped.mkdir(parents=True)
    (data / "manifests").mkdir()
    whole = TEN.replace(
        "---\ndiff",
        "How: X\nUpstream-Status: pending\nVerified-By: tests/test_x.py::test_x\n"
        "Needs-NPU: no\nRetire-When: never\n---\ndiff",
    )
    (shipped / "0001-ten.patch").write_text(whole)
    (shipped / "series").write_text("# shipped\n0001-ten.patch\n")
    monkeypatch.setattr(bundled, "data_root", lambda: data)
    relaid(patched, "up/1.0")
    before = {path: path.read_bytes() for path in shipped.iterdir()}
    fixed_up(patched, lib__core_py=CORE.replace("line 30\n", "line 3X\n"))
    patched.write("lib/same.py", "S = 2\n")
    patched.commit("Another")
    text = exported_twice(patched)
    assert {path: path.read_bytes() for path in shipped.iterdir()} == before
    (folder,) = (p for p in patched.patches.iterdir() if p.name != "up")
    assert f"patches: [./patches/{folder.name}]" in text
    assert (folder / "series").read_text() == "# shipped\n0001-ten.patch\n0002-another.patch\n"


def test_a_parents_list_is_added_to(plain: Export) -> None:
    child = plain.manifest.with_name("child.yaml")
    child.write_text("# Mine.\nschema: 1\nname: child\ntitle: mine\nextends: ./m.yaml\n")
    parent = plain.manifest.read_text()
    plain.write("lib/same.py", "S = 2\n")
    plain.commit("Another")
    tree = plain.tree()
    ok(plain.run("patches", "export", "-m", child, "-w", plain.workspace))
    assert plain.manifest.read_text() == parent
    assert child.read_text().endswith("components:\n  up:\n    patches: [./patches/up]\n")
    ok(plain.run("lock", "-m", child))
    ok(plain.run("setup", "-m", child, "-w", plain.workspace))
    assert plain.tree() == tree


def test_a_new_patch_does_not_change_the_parents_folder(patched: Export) -> None:
    child = patched.manifest.with_name("child.yaml")
    child.write_text("schema: 1\nname: child\ntitle: mine\nextends: ./m.yaml\n")
    before = patched.beside()
    patched.write("lib/same.py", "S = 2\n")
    patched.commit("Another")
    tree = patched.tree()
    for _ in range(2):
        ok(patched.run("patches", "export", "-m", child, "-w", patched.workspace))
        found = patched.beside()
        assert {name: found[name] for name in before if name != "child.yaml"} == {
            name: data for name, data in before.items() if name != "child.yaml"
        }
        assert child.read_text().endswith("    patches: {append: [./patches/up-2]}\n")
    ok(patched.run("lock", "-m", child))
    ok(patched.run("setup", "-m", child, "-w", patched.workspace))
    assert patched.tree() == tree


def test_a_bundled_manifest_is_never_written(plain: Export) -> None:
    done = plain.run("patches", "export", "-m", "quickstart", "-w", plain.workspace)
    assert_told(done, "quickstart is a bundled manifest", "extends: quickstart")


def test_a_failed_write_puts_everything_back(plain: Export) -> None:
    plain.write("lib/same.py", "S = 2\n")
    plain.commit("Another")
    before = plain.beside()
    plain.patches.write_text("a file where the folder has to be\n")
    assert plain.export().returncode
    plain.patches.unlink()
    assert plain.beside() == before


SHIPPED = sorted(p for p in (ROOT / "manifests").glob("*.yaml") if "." not in p.stem)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_manifest_changes_in_one_line(path: Path) -> None:
    text = path.read_text()
    name = text.partition("\ncomponents:\n")[2].lstrip().partition(":")[0]
    lines = text.splitlines()
    name = next(
        line.strip().rstrip(":")
        for line in lines[lines.index("components:") + 1 :]
        if line.startswith("  ") and not line.lstrip().startswith("#")
    )
    new = (
        edited(text.encode(), [ListEdit(name, ["a/1"], {}, ["./patches/x"])], path.name).decode().splitlines()
    )
    assert len([line for line in new if line not in lines]) == 1
    assert len([line for line in lines if line not in new]) <= 1


BLOCK = "components:\n  a:\n    patches:\n    - ./x  # one\n    - path: ./y\n      strip: 0\n    # end\n"
KEYS = "name: x\r\ncomponents:\r\n  a:\r\n    ref: y\r\n"
EDITS = [
    ("components:\n  a:\n    take: []\n", {}, "components:\n  a:\n    patches: [./p]\n    take: []\n"),
    (BLOCK, {1: "./z"}, BLOCK.replace("./y", "./z").replace("    # end", "    - ./p\n    # end")),
    (
        '{"components": {"a": {"patches": ["./x"]}}}',
        {0: "./y"},
        '{"components": {"a": {"patches": [./y, ./p]}}}',
    ),
    ("components: {a: {ref: x}}\n", {}, "components: {a: {ref: x, patches: [./p]}}\n"),
    (KEYS, {}, KEYS + "    patches: [./p]\r\n"),
    ("components:\n  a: {patches: ~}\n", {}, "components:\n  a: {patches: [./p]}\n"),
    ("components:\n  a: {patches: []}\n", {}, "components:\n  a: {patches: [./p]}\n"),
    (
        "components:\n  a:\n    ref: x\n    # two\n    # lines\n    take: []\n",
        {},
        "components:\n  a:\n    ref: x\n    patches: [./p]\n    # two\n    # lines\n    take: []\n",
    ),
    (
        "components:\n  a:\n    patches:   # none yet\n    ref: x\n",
        {},
        "components:\n  a:\n    patches: [./p]   # none yet\n    ref: x\n",
    ),
]


@pytest.mark.parametrize(("text", "replaced", "expected"), EDITS)
def test_only_the_list_changes(text: str, replaced: dict[int, str], expected: str) -> None:
    assert edited(text.encode(), [ListEdit("a", [], replaced, ["./p"])], "m.yaml").decode() == expected


@pytest.mark.parametrize(
    "text",
    [
        "components:\n  b: {patches: &x [./q]}\n  a: {patches: *x}\n",
        "components:\n  a:\n  b: {ref: x}\n",
        "components:\n  a:\n    patches:\n      - path: >-\n          ./x\n      - path: ./y\n",
    ],
)
def test_a_layout_that_is_not_supported_is_named(text: str) -> None:
    removed = frozenset({0} if "./x" in text else ())
    with pytest.raises(ManifestError, match="can't be added") as raised:
        edited(text.encode(), [ListEdit("a", [], {}, ["./p"], removed)], "m.yaml")
    assert "plain list without anchors" in str(raised.value.hint)


def test_an_inherited_entry_that_changes_takes_the_list_over() -> None:
    text = "name: x\nextends: y\ncomponents:\n  a:\n    patches: {append: [./own]}   # more\n"
    done = edited(
        text.encode(), [ListEdit("a", ["up/1", {"path": "b/2", "offset": "3"}], {0: "./c"}, ["./p"])], "m"
    )
    assert done.decode() == text.replace("{append: [./own]}", '[./c, {path: b/2, offset: "3"}, ./own, ./p]')


def test_names_and_headers() -> None:
    assert slug_of_subject("Don't repeat `n` twice (#12), für alle") == "dont-repeat-n-twice-12-fur-alle"
    assert len(slug_of_subject("word " * 40)) <= 52
    assert slug_of_subject("修复") == ""
    message = (
        "Subject here\n\nWhy: x\ndiff --git a/x b/x\n---\n@@@ x\nHow: y\n\nPatch: a/b\nSigned-off-by: Me\n"
    )
    assert header_text(message) == (
        b"Subject: Subject here\n\nWhy: x\n diff --git a/x b/x\n ---\n @@@ x\nHow: y\n\nSigned-off-by: Me\n"
    )


def test_a_series_keeps_its_comments() -> None:
    text = "# All.\n0001-a.patch\n# why b\n0002-b.patch  # mine\n# end\n"
    names = ["0001-a.patch", "0002-b.patch"]
    assert with_names(text, names) == text
    assert with_names(text, [*names, "0003-c.patch"]) == text.replace("# end", "# end").replace(
        "# mine\n", "# mine\n0003-c.patch\n"
    )
    assert with_names(text, ["0002-b.patch"]) == "# All.\n# why b\n0002-b.patch  # mine\n# end\n"
    assert with_names("", ["0001-a.patch"]) == "0001-a.patch\n"
