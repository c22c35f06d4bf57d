"""The tar of bundles: every tar program reads it, and nothing but it is read."""

from __future__ import annotations

import io
import string
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_rl.stack.bundles.bundle_tar import (
    BLOCK,
    LARGEST_MEMBER,
    Bytes,
    FileContent,
    TarFault,
    copy_content,
    header,
    read_tar,
    write_tar,
)
from tests.bundles.made import changed_header, tar_of

NAMES = st.text(string.ascii_letters + string.digits + "._+-/!", min_size=1, max_size=254).map(
    lambda text: text + "x"
)
FEW = {"a": b"", "b/" + "long" * 40: b"x" * 700, "c": b"y" * BLOCK}


def read(data: bytes, folder: Path) -> dict[str, bytes]:
    place = folder / "x.tar"
    place.write_bytes(data)
    with place.open("rb") as file:
        return {member.name: b"".join(copy_content(file, member)) for member in list(read_tar(file))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tar")


@settings(max_examples=40)
@given(members=st.dictionaries(NAMES, st.binary(max_size=1100), max_size=5))
def test_what_was_written_is_read(folder: Path, members: dict[str, bytes]) -> None:
    data = tar_of(members)
    assert read(data, folder) == members
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert [entry.name for entry in tar] == [*sorted(members)]
        for entry in tar:
            assert (entry.mtime, entry.uid, entry.gid, entry.uname, entry.mode) == (0, 0, 0, "", 0o644)


@settings(max_examples=60)
@given(data=st.binary(max_size=2000), at=st.integers(0, 4000), flipped=st.integers(1, 255))
def test_other_bytes_are_refused_or_content(folder: Path, data: bytes, at: int, flipped: int) -> None:
    """A changed byte is in the content, which hashes hold, or the file is refused."""
    whole = bytearray(tar_of({"one": data, "two": b"2"}))
    at %= len(whole)
    whole[at] ^= flipped
    try:
        found = read(bytes(whole), folder)
    except TarFault:
        return
    assert found.keys() == {"one", "two"} and found != {"one": data, "two": b"2"}


def test_one_cut_short_is_refused_wherever_it_ends(folder: Path) -> None:
    data = tar_of(FEW)
    assert read(data, folder) == FEW
    ends = {end + more for end in range(0, len(data), BLOCK) for more in (-1, 0, 1)}
    for end in ends - {-1, len(data)}:
        with pytest.raises(TarFault, match="cut short"):
            read(data[:end], folder)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (b"1", "link"),
        (b"2", "link"),
        (b"3", "not a regular"),
        (b"5", "not a regular"),
        (b"L", "not a regular"),
    ],
)
def test_only_regular_files_are_read(folder: Path, kind: bytes, told: str) -> None:
    def change(block: bytearray) -> None:
        block[156:157] = kind

    with pytest.raises(TarFault, match=told):
        read(changed_header(tar_of(FEW), "c", change), folder)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (slice(100, 107), b"0000755"),
        (slice(108, 115), b"0001750"),
        (slice(136, 147), b"00000000001"),
        (slice(157, 160), b"/et"),
        (slice(265, 269), b"root"),
        (slice(345, 348), b"../"),
        (slice(124, 136), b"\x80" + bytes(10) + b"\x05"),
        (slice(124, 135), b"        512"),
    ],
    ids=["mode", "owner", "time", "link", "user", "prefix", "binary size", "spaces"],
)
def test_a_header_is_the_one_of_its_name_and_size(folder: Path, place: slice, value: bytes) -> None:
    def change(block: bytearray) -> None:
        block[place] = value

    with pytest.raises(TarFault, match="header"):
        read(changed_header(tar_of(FEW), "c", change), folder)


def test_an_extended_header_has_a_name_only(folder: Path) -> None:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a")
        info.pax_headers = {"size": "5"}
        tar.addfile(info, io.BytesIO())
    with pytest.raises(TarFault, match="more than a name"):
        read(memory.getvalue(), folder)


def test_twice_disorder_and_more_behind(folder: Path) -> None:
    one, other = tar_of({"a": b"1"})[:-1024], tar_of({"b": b"2"})[:-1024]
    end = bytes(1024)
    assert read(one + other + end, folder) == {"a": b"1", "b": b"2"}
    for data, told in (
        (one + one + end, "a twice"),
        (one + other + one + end, "a twice"),
        (other + one + end, "out of order"),
        (one + end + b"x", "after its end"),
        (one + end + end, "after its end"),
        (one[:-1] + b"x" + end, "data after a"),
    ):
        with pytest.raises(TarFault, match=told):
            read(data, folder)


def test_sizes_and_names_have_limits() -> None:
    assert len(header("a", LARGEST_MEMBER)) == BLOCK
    for name, size in (("a", LARGEST_MEMBER + 1), ("", 0), ("a b", 0), ("ä", 0), ("x" * 256, 0)):
        with pytest.raises(TarFault):
            header(name, size)


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    class Shrinking(Bytes):
        def size(self) -> int:
            return len(self.data) + 1

    with pytest.raises(TarFault, match="changed"), (tmp_path / "x.tar").open("wb") as file:
        write_tar(file, [("a", Shrinking(b"1"))])
    (tmp_path / "f").write_bytes(b"content")
    with (tmp_path / "y.tar").open("wb") as file:
        write_tar(file, [("a", FileContent(tmp_path / "f"))])
    assert read((tmp_path / "y.tar").read_bytes(), tmp_path) == {"a": b"content"}
