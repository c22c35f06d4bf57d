from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from npu_rl.common.errors import PatchError
from npu_rl.stack.patches.series import FolderPatches, read_patchset, read_patchset_text
from tests.patches.test_header import GOOD

DIFF = b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-x\n+y\n"


def patchset(folder: Path, series: str | bytes | None, *names: str, header: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(header.encode() + DIFF)
    if series is not None:
        (folder / "series").write_bytes(series.encode() if isinstance(series, str) else series)
    return folder


def test_the_series_is_the_order(tmp_path: Path) -> None:
    folder = patchset(
        tmp_path / "p", "# first\n0002-b.patch\n\n0001-a.patch  # why\n", "0001-a.patch", "0002-b.patch"
    )
    (folder / "README.md").write_text("not a patch")
    sources = read_patchset(folder)
    assert [(s.name, s.path) for s in sources] == [
        ("0002-b.patch", folder / "0002-b.patch"),
        ("0001-a.patch", folder / "0001-a.patch"),
    ]
    assert sources[0].data == DIFF


@pytest.mark.parametrize(
    ("series", "names", "expected"),
    [
        (None, ["0001-a.patch"], r"has no `series` file"),
        ("0001-a.patch\n", [], r"(?s)0001-a\.patch does not exist.*series:1"),
        ("# x\n0001-a.patch\n", ["0001-a.patch", "0002-b.patch"], r"0002-b\.patch would not be applied"),
        ("0001-a.patch\n0001-a.patch\n", ["0001-a.patch"], r"(?s)listed twice.*series:2"),
        ("0001-a.patch -R\n", ["0001-a.patch"], r"(?s)unsupported.*series:1"),
        ("0001-a.patch two.patch\n", ["0001-a.patch"], r"(?s)unsupported.*series:1"),
        ("../p/../p.patch\n", [], r"does not exist"),
        (b"\xff.patch\n", [], r"not UTF-8"),
        (b"\xef\xbb\xbf0001-a.patch\n", ["0001-a.patch"], r"does not exist"),
    ],
)
def test_a_patchset_must_be_whole(
    tmp_path: Path, series: str | bytes | None, names: list[str], expected: str
) -> None:
    with pytest.raises(PatchError, match=expected) as caught:
        read_patchset(patchset(tmp_path / "p", series, *names))
    assert caught.value.hint


@pytest.mark.parametrize("name", ["0001-a.patch", "series"])
def test_a_symlink_may_not_leave_the_folder(tmp_path: Path, name: str) -> None:
    folder = patchset(tmp_path / "p", "0001-a.patch\n", "0001-a.patch")
    os.replace(folder / name, tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(PatchError, match="leads out of its patchset"):
        read_patchset(folder)


@pytest.mark.parametrize("name", ["../outside.patch", "{tmp_path}/outside.patch"])
def test_a_name_may_not_leave_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside.patch").write_bytes(DIFF)
    with pytest.raises(PatchError, match="leads out of its patchset"):
        read_patchset(patchset(tmp_path / "p", name.format(tmp_path=tmp_path)))


def test_lint_demands_the_header(tmp_path: Path) -> None:
    folder = patchset(tmp_path / "p", "0001-a.patch\n", "0001-a.patch", header=GOOD)
    assert len(read_patchset(folder, lint=True)) == 1
    with pytest.raises(PatchError, match="not the name of a bundled patch"):
        read_patchset(patchset(tmp_path / "q", "a.patch", "a.patch", header=GOOD), lint=True)
    patchset(folder, None, "0001-a.patch", header="Subject: x\n\nWhy: y\n")
    assert len(read_patchset(folder)) == 1
    with pytest.raises(PatchError, match=r"(?s)0001-a\.patch is not complete.*How.*Retire-When"):
        read_patchset(folder, lint=True)


def component_folder(
    listing: dict[str, bytes], links: tuple[str, ...] = (), where: str = ""
) -> FolderPatches:
    plain = {**dict.fromkeys(listing, True), **dict.fromkeys(links, False)}
    return read_patchset_text(plain, listing.__getitem__, where=where)


def test_a_components_own_patches() -> None:
    listing = {"b fix.patch": b"1", "A.diff": b"2", "README": b"3"}
    assert [s.name for s in component_folder(listing).sources] == ["A.diff", "b fix.patch"]
    ordered = {"z.patch": b"1", "a.patch": b"2", "off.patch": b"3", "series": b"z.patch\na.patch\n"}
    found = component_folder(ordered, where="verl_npu/patches")
    assert [(s.name, s.path, s.data) for s in found.sources] == [
        ("z.patch", None, b"1"),
        ("a.patch", None, b"2"),
    ]
    assert found.passed_over == ("off.patch",)
    with pytest.raises(PatchError, match=r"(?s)q\.patch does not exist.*d/series:1"):
        component_folder({"series": b"q.patch\n"}, where="d")
    with pytest.raises(PatchError, match="No patch is there"):
        component_folder({"README": b""}, where="d")


def test_subfolders_of_a_component_are_read_in_order() -> None:
    """By name, folders and files alike; a folder's own series is its order and its choice."""
    listing = {
        "z.patch": b"",
        "moe/b.patch": b"",
        "moe/deep/er/a.diff": b"",
        "c.patch": b"",
        "attention/series": b"2.patch\n./sub/1.patch\n",
        "attention/1.patch": b"",
        "attention/2.patch": b"",
        "attention/sub/1.patch": b"",
        "series.md": b"",
    }
    found = component_folder(listing, links=("link.patch",))
    assert [s.name for s in found.sources] == [
        "attention/2.patch",
        "attention/sub/1.patch",
        "c.patch",
        "moe/b.patch",
        "moe/deep/er/a.diff",
        "z.patch",
    ]
    assert found.passed_over == ("attention/1.patch", "link.patch")


@pytest.mark.parametrize("name", ["sub/0002-b.patch", "B.PATCH", "linked/b.patch"])
def test_no_patch_of_our_own_folder_is_passed_over(tmp_path: Path, name: str) -> None:
    folder = patchset(tmp_path / "p", "0001-a.patch\n", "0001-a.patch")
    if name.startswith("linked/"):
        patchset(tmp_path / "elsewhere", None, "b.patch")
        (folder / "linked").symlink_to(tmp_path / "elsewhere")
    else:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(DIFF)
    (folder / "loop").symlink_to(folder)
    with pytest.raises(PatchError, match=f"^{re.escape(name)} would not be applied"):
        read_patchset(folder)


def test_a_subfolder_with_a_series_is_a_patchset_of_its_own(tmp_path: Path) -> None:
    folder = patchset(tmp_path / "p", "0001-a.patch\n", "0001-a.patch")
    patchset(folder / "1.1", "0001-b.patch\n", "0001-b.patch")
    assert [source.name for source in read_patchset(folder)] == ["0001-a.patch"]
    patchset(folder / "1.10", None, "0001-b.patch")
    with pytest.raises(PatchError, match=r"^1\.10/0001-b\.patch would not be applied"):
        read_patchset(folder)
