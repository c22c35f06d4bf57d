from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu_rl.common.errors import SourceError
from npu_rl.stack.sources.sdist import SdistFile, SdistLimits, read_sdist, select
from tests.sources.archives import member, tar_bytes


def write(folder: Path, data: bytes) -> Path:
    path = folder / "p-1.0.tar.gz"
    path.write_bytes(data)
    return path


def write_tar(folder: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    return write(folder, gzip.compress(tar_bytes(*members)))


def refusal(path: Path, **options: object) -> str:
    with pytest.raises(SourceError) as caught:
        list(read_sdist(path, **options))  # type: ignore[arg-type]
    assert path.name in str(caught.value)
    return str(caught.value)


PLAIN = (
    member("p-1.0", kind=tarfile.DIRTYPE, mode=0o755),
    member("p-1.0/setup.py", b"import os\n"),
    member("p-1.0/p/run.sh", b"#!/bin/sh\n", mode=0o755),
    member("p-1.0/p/ø.txt", b"\x00\xff"),
)
EXPECTED = [
    SdistFile("setup.py", b"import os\n", False),
    SdistFile("p/run.sh", b"#!/bin/sh\n", True),
    SdistFile("p/ø.txt", b"\x00\xff", False),
]


def test_files_and_their_modes(tmp_path: Path) -> None:
    assert list(read_sdist(write_tar(tmp_path, *PLAIN))) == EXPECTED


@pytest.mark.parametrize(
    "name",
    [
        "p-1.0.zip",
        "p-1.0.tgz",
        "p-1.0.tar",
        "p-1.0.tar.bz2",
        "p-1.0.tbz",
        "p-1.0.tar.xz",
        "p-1.0.txz",
        "p-1.0.whl",
    ],
)
def test_only_a_tar_gz_is_an_sdist(tmp_path: Path, name: str) -> None:
    """Refused by its name: nothing looks inside, whatever it is in truth."""
    path = write_tar(tmp_path, *PLAIN).rename(tmp_path / name)
    message = refusal(path)
    assert "Unsupported sdist format" in message
    assert "An sdist is a .tar.gz (PEP 625)" in message


def zipped(data: bytes) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("p-1.0/setup.py", data)
    return memory.getvalue()


@pytest.mark.parametrize(
    "pack", [bz2.compress, lzma.compress, bytes, zipped], ids=["bz2", "xz", "plain", "zip"]
)
def test_another_format_under_the_right_name_is_damage(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    assert "damaged" in refusal(write(tmp_path, pack(tar_bytes(*PLAIN))))


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names(tmp_path: Path, format: int) -> None:
    long = "p-1.0/" + "/".join(["folder" * 10] * 5) + "/file.py"
    path = write(tmp_path, gzip.compress(tar_bytes(member(long, b"x"), format=format)))
    assert [f.path for f in read_sdist(path)] == [long.removeprefix("p-1.0/")]


def test_only_the_owners_bit_makes_an_executable(tmp_path: Path) -> None:
    path = write_tar(tmp_path, member("p/a", mode=0o611), member("p/b", mode=0o100))
    assert [f.executable for f in read_sdist(path)] == [False, True]


def test_keep_reads_nothing_else_but_judges_all(tmp_path: Path) -> None:
    path = write_tar(tmp_path, *PLAIN)
    assert [f.path for f in read_sdist(path, keep=["p/"])] == ["p/run.sh", "p/ø.txt"]
    assert [f.path for f in read_sdist(path, keep=["setup.py"])] == ["setup.py"]
    bad = write_tar(tmp_path, *PLAIN, member("p-1.0/docs/x", kind=tarfile.SYMTYPE, link="/etc/passwd"))
    assert "symbolic link" in refusal(bad, keep=["p"])


def test_nothing_is_unpacked_or_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "marker"
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    path = write_tar(folder, member("p/setup.py", f"open({str(marker)!r}, 'w')\n".encode(), mode=0o755))
    assert len(list(read_sdist(path))) == 1
    assert [p.name for p in folder.iterdir()] == [path.name]
    assert not marker.exists()


NAMES = {
    "/etc/passwd": "absolute",
    "p/../../x": "'..'",
    "..": "'..'",
    "p/./x": "'.'",
    "p//x": "component ''",
    "p\\x": "backslash",
    "p/a\\..\\b": "backslash",
    "p/a\nb": "control character",
    "p/a\x7fb": "control character",
    "p/a\x9bb": "control character",
    "p/.git/config": "git's own folder",
    "p/.GIT/config": "git's own folder",
    "p/sub/.git": "git's own folder",
    ".git/config": "git's own folder",
    "p/.g\u200cit/hooks/x": "git's own folder",
    "p/\ufeff.git/x": "git's own folder",
    "p/GIT~1/x": "git's own folder",
    "p/.git . ./x": "git's own folder",
    "p/.git::$INDEX_ALLOCATION/x": "git's own folder",
    "p/" + "ø" * 128: "longer than 255 bytes",
    "x": "top folder",
}


@pytest.mark.parametrize("name", NAMES)
def test_unsafe_names_in_tar(tmp_path: Path, name: str) -> None:
    message = refusal(write_tar(tmp_path, member("p/first", b"1"), member(name, b"2")))
    assert NAMES[name] in message
    assert ascii(name) in message


@pytest.mark.parametrize("name", ["p/../x", "p/.git", "/p", "p/a\nb"])
def test_unsafe_folders(tmp_path: Path, name: str) -> None:
    folder = member(name, kind=tarfile.DIRTYPE)
    assert NAMES.get(name, "") in refusal(write_tar(tmp_path, member("p/first"), folder))


def test_a_name_with_nul(tmp_path: Path) -> None:
    info, data = member("p/safe", b"x")
    info.pax_headers = {"path": "p/safe\0evil"}
    assert "control character" in refusal(write_tar(tmp_path, member("p/1"), (info, data)))


def test_names_that_git_allows_are_kept(tmp_path: Path) -> None:
    names = [".gitignore", ".github/x", "git", "a.git/x", "...", "a b", "ü", ".git2", "git~2"]
    path = write_tar(tmp_path, *(member(f"p/{n}") for n in names))
    assert [f.path for f in read_sdist(path)] == names


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    data = tar_bytes(member("p/a\udcff.py", b"x"), format=tarfile.GNU_FORMAT)
    assert b"\xff" in data
    assert "not UTF-8" in refusal(write(tmp_path, gzip.compress(data)))


KINDS = {
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
    tarfile.FIFOTYPE: "pipe",
    tarfile.CONTTYPE: "unknown kind",
    b"V": "unknown kind",
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_files_and_folders(tmp_path: Path, kind: bytes) -> None:
    message = refusal(write_tar(tmp_path, *PLAIN, member("p-1.0/bad", kind=kind, link="p-1.0/setup.py")))
    assert KINDS[kind] in message
    assert "'p-1.0/bad'" in message


def test_sparse_files_are_refused(tmp_path: Path) -> None:
    info, _ = member("p/hole")
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "p/hole",
        "GNU.sparse.realsize": str(10**12),
    }
    body = b"1\n0\n1\n".ljust(512, b"\0")
    info.size = len(body)
    assert "larger than" in refusal(write_tar(tmp_path, member("p/1"), (info, body)))
    info.pax_headers["GNU.sparse.realsize"] = "1000"
    assert "sparse" in refusal(write_tar(tmp_path, member("p/1"), (info, body)))


@pytest.mark.parametrize(
    "names",
    [("p/a", "p/a"), ("p/a", "p/a/b"), ("p/a/b", "p/a"), ("p/a/", "p/a"), ("p/a", "p/a/")],
)
def test_doubles_and_files_that_are_folders(tmp_path: Path, names: tuple[str, str]) -> None:
    tar = [member(n.rstrip("/"), kind=tarfile.DIRTYPE if n.endswith("/") else tarfile.REGTYPE) for n in names]
    message = refusal(write_tar(tmp_path, *tar))
    assert "twice" in message or "a file and a folder" in message


def test_one_top_folder(tmp_path: Path) -> None:
    assert "more than one top folder" in refusal(write_tar(tmp_path, member("p/a"), member("q/a")))
    assert "top folder" in refusal(write_tar(tmp_path, member("setup.py", b"x")))


def test_limits(tmp_path: Path) -> None:
    archive = write_tar(tmp_path, *(member(f"p/{i}", b"x" * 1000) for i in range(10)))
    assert "more than 9 members" in refusal(archive, limits=SdistLimits(members=9))
    assert "larger than 999 bytes" in refusal(archive, limits=SdistLimits(file_bytes=999))
    assert "more than 9000 bytes" in refusal(archive, limits=SdistLimits(total_bytes=9000))
    assert "times its size" in refusal(archive, limits=SdistLimits(ratio=2, ratio_from=100))
    assert len(list(read_sdist(archive, limits=SdistLimits(members=10, file_bytes=1000)))) == 10


def test_a_bomb_is_stopped_early(tmp_path: Path) -> None:
    path = tmp_path / "p-1.0.tar.gz"
    header = tarfile.TarInfo("p/big")
    header.size = 200 * 1024 * 1024
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header.tobuf())
        for _ in range(200):
            file.write(bytes(1024 * 1024))
    assert path.stat().st_size < 2 * 1024 * 1024
    limits = SdistLimits(ratio=20, ratio_from=1024 * 1024)
    assert "times its size" in refusal(path, limits=limits)


def test_a_huge_header_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 500 * 1024 * 1024
    assert "damaged" in refusal(write(tmp_path, gzip.compress(info.tobuf() + bytes(2048))))


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    """Cut in the plain tar, at each block and between, and in the compressed file."""
    whole = tar_bytes(member("p/a", b"a" * 700), member("p/b", b"b" * 512))
    end = 512 + 1024 + 512 + 512  # where the end mark begins
    packed = gzip.compress(whole)
    cut = [gzip.compress(whole[:size]) for size in range(0, end + 512, 128)]
    cut += [packed[:size] for size in (0, 5, len(packed) // 2, len(packed) - 9, len(packed) - 1)]
    for number, data in enumerate(cut):
        assert "damaged or truncated" in refusal(write(tmp_path, data)), number
    assert len(list(read_sdist(write(tmp_path, gzip.compress(whole[: end + 512]))))) == 2


def test_damage_is_noticed(tmp_path: Path) -> None:
    whole = bytearray(tar_bytes(member("p/a", b"a" * 512), member("p/b", b"b" * 512)))
    whole[1024 + 3] ^= 1  # the second header: its checksum no longer fits
    assert "damaged" in refusal(write(tmp_path, gzip.compress(bytes(whole))))
    packed = bytearray(gzip.compress(tar_bytes(member("p/a", b"a" * 512))))
    packed[-6] ^= 1  # the CRC of the gzip stream
    assert "damaged" in refusal(write(tmp_path, bytes(packed)))


def test_data_after_the_end_is_refused(tmp_path: Path) -> None:
    more = write(tmp_path, gzip.compress(tar_bytes(member("p/a")) + tar_bytes(member("p/b"))))
    assert "more data after the end" in refusal(more)
    padded = write(tmp_path, gzip.compress(tar_bytes(member("p/a")) + bytes(100_000)))
    assert [f.path for f in read_sdist(padded)] == ["a"]


def test_a_negative_size_is_refused(tmp_path: Path) -> None:
    header = bytearray(tarfile.TarInfo("p/a").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 8 + struct.pack(">i", -512)
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    assert "damaged" in refusal(write(tmp_path, gzip.compress(bytes(header) + bytes(1024))))


def test_other_files(tmp_path: Path) -> None:
    assert "can't be read" in refusal(tmp_path / "missing-1.0.tar.gz")
    assert "holds no files" in refusal(write_tar(tmp_path, member("p", kind=tarfile.DIRTYPE)))


FILES = [SdistFile(p, b"", False) for p in ("a/x.py", "a/y.py", "a/sub/z.py", "ab/x.py", "top.py")]


def test_select() -> None:
    everything = select(FILES, ["."], [])
    assert [f.path for f in everything.files] == [f.path for f in FILES]
    chosen = select(FILES, ["a", "top.py"], ["a/sub", "a/y.py"])
    assert [f.path for f in chosen.files] == ["a/x.py", "top.py"]
    assert (chosen.unmatched_keep, chosen.unmatched_drop) == ((), ())
    missed = select(FILES, ["a/", "nowhere"], ["a/s", "ab/x.py", "a/sub/"])
    assert [f.path for f in missed.files] == ["a/x.py", "a/y.py"]
    assert missed.unmatched_keep == ("nowhere",)
    assert missed.unmatched_drop == ("a/s", "ab/x.py")


# Pieces that attackers build names from, and anything else.
pieces = st.sampled_from(
    [
        "..",
        ".",
        "",
        ".git",
        "GIT~1",
        "/",
        "//",
        "\\",
        "a",
        "A",
        "\u200d",
        "\x00",
        "\n",
        "p",
        ".git ",
        "ø",
        ":",
        "é",
    ]
) | st.text(max_size=6)
names = st.lists(pieces, max_size=6).map("/".join) | st.lists(pieces, max_size=4).map("".join)


def check_safe(files: list[SdistFile]) -> None:
    assert len({f.path for f in files}) == len(files)
    for file in files:
        path = PurePosixPath(file.path)
        assert not path.is_absolute()
        assert str(path) == file.path
        assert not {"..", ".", ""} & set(path.parts)
        assert "\\" not in file.path
        assert not any(unicodedata.category(c) in ("Cc", "Cs") for c in file.path)
        for part in path.parts:
            bare = part.replace("\u200d", "").split(":")[0].rstrip(". ").lower()
            assert bare not in (".git", "git~1")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(names, min_size=1, max_size=4))
def test_no_name_in_a_tar_yields_an_unsafe_path(tmp_path: Path, found: list[str]) -> None:
    try:
        data = tar_bytes(*(member(f"p/{n}") for n in found))
    except (UnicodeEncodeError, ValueError):
        return  # not a name tarfile can write
    path = write(tmp_path, gzip.compress(data, 1))
    try:
        files = list(read_sdist(path))
    except SourceError:
        return
    check_safe(files)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=2048), st.integers(0, 4096))
def test_any_damage_is_a_source_error(tmp_path: Path, noise: bytes, at: int) -> None:
    whole = tar_bytes(member("p/a", b"a" * 700), member("p/b", b"b"))
    path = write(tmp_path, gzip.compress(whole[:at] + noise + whole[at + len(noise) :], 1))
    try:
        files = list(read_sdist(path))
    except SourceError as error:
        assert path.name in str(error)
        return
    check_safe(files)
