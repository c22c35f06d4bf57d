"""Archives are read as they are, or refused as a whole."""

from __future__ import annotations

import bz2
import gzip
import tarfile
import unicodedata
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu_rl.common.errors import SourceError
from npu_rl.stack.sources.sdist import SdistFile, read_sdist
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
    member("p-1.0/p/ø.txt", b"\x00\xff", mode=0o611),
)


def test_files_and_their_modes(tmp_path: Path) -> None:
    """The owner's bit alone makes an executable; nothing is unpacked."""
    assert list(read_sdist(write_tar(tmp_path, *PLAIN))) == [
        SdistFile("setup.py", b"import os\n", False),
        SdistFile("p/run.sh", b"#!/bin/sh\n", True),
        SdistFile("p/ø.txt", b"\x00\xff", False),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["p-1.0.tar.gz"]


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names(tmp_path: Path, format: int) -> None:
    long = "p-1.0/" + "/".join(["folder" * 10] * 5) + "/file.py"
    path = write(tmp_path, gzip.compress(tar_bytes(member(long, b"x"), format=format)))
    assert [f.path for f in read_sdist(path)] == [long.removeprefix("p-1.0/")]


def test_keep_reads_nothing_else_but_judges_all(tmp_path: Path) -> None:
    path = write_tar(tmp_path, *PLAIN)
    assert [f.path for f in read_sdist(path, keep=["p/"])] == ["p/run.sh", "p/ø.txt"]
    assert [f.path for f in read_sdist(path, keep=["setup.py"])] == ["setup.py"]
    bad = write_tar(tmp_path, *PLAIN, member("p-1.0/docs/x", kind=tarfile.SYMTYPE, link="/etc/passwd"))
    assert "neither a file nor a folder" in refusal(bad, keep=["p"])


UNSAFE = (
    *(
        "/etc/passwd",
        "p/../../x",
        "..",
        "p/./x",
        "p//x",
        "p\\x",
        "p/a\nb",
        "p/a\x9bb",
        "p/.GIT/config",
        "p/sub/.git",
    ),
    *("p/.g\u200cit/hooks/x", "p/GIT~1/x", "p/.git . ./x", "p/.git::$INDEX_ALLOCATION/x", "p/" + "ø" * 128),
    *("x", "q/x", "p/first", "p/first/below"),
)


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_names(tmp_path: Path, name: str) -> None:
    """Names that lead out, mean git's folder or something else on another machine, are double or beside the top."""
    assert "refused" in refusal(write_tar(tmp_path, member("p/first", b"1"), member(name, b"2")))
    folder = member(name, kind=tarfile.DIRTYPE)
    assert "refused" in refusal(write_tar(tmp_path, member("p/first"), folder))


def test_names_that_are_no_text(tmp_path: Path) -> None:
    info, data = member("p/safe", b"x")
    info.pax_headers = {"path": "p/safe\0evil"}
    assert "control" in refusal(write_tar(tmp_path, member("p/1"), (info, data)))
    raw = tar_bytes(member("p/a\udcff.py", b"x"), format=tarfile.GNU_FORMAT)
    assert "refused" in refusal(write(tmp_path, gzip.compress(raw)))


def test_names_that_git_allows_are_kept(tmp_path: Path) -> None:
    names = [".gitignore", ".github/x", "git", "a.git/x", "...", "a b", "ü", ".git2", "git~2"]
    path = write_tar(tmp_path, *(member(f"p/{n}") for n in names))
    assert [f.path for f in read_sdist(path)] == names


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"V"])
def test_only_files_and_folders(tmp_path: Path, kind: bytes) -> None:
    bad = member("p-1.0/bad", kind=kind, link="p-1.0/setup.py")
    assert "'p-1.0/bad' is neither" in refusal(write_tar(tmp_path, *PLAIN, bad))


def test_sparse_files_are_refused(tmp_path: Path) -> None:
    info, _ = member("p/hole")
    sparse = {"major": "1", "minor": "0", "name": "p/hole", "realsize": "1000"}
    info.pax_headers = {f"GNU.sparse.{key}": value for key, value in sparse.items()}
    body = b"1\n0\n1\n".ljust(512, b"\0")
    info.size = len(body)
    assert "neither" in refusal(write_tar(tmp_path, member("p/1"), (info, body)))


def test_a_bomb_is_stopped(tmp_path: Path) -> None:
    """Whether it is in a file or in the header of a long name."""
    archive = write_tar(tmp_path, *(member(f"p/{i}", bytes(100_000)) for i in range(10)))
    assert "more bytes" in refusal(archive, largest=1_000_000)
    assert "more bytes" in refusal(archive, largest=1_000_000, keep=["nothing"])
    assert len(list(read_sdist(archive, largest=1_100_000))) == 10
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2_000_000
    assert "more bytes" in refusal(
        write(tmp_path, gzip.compress(info.tobuf() + bytes(3_000_000))), largest=1_000_000
    )


def test_damage_is_noticed(tmp_path: Path) -> None:
    packed = gzip.compress(tar_bytes(member("p/a", b"a" * 700), member("p/b", b"b" * 512)))
    for size in (0, 5, len(packed) // 2, len(packed) - 9, len(packed) - 1):
        assert "damaged or truncated" in refusal(write(tmp_path, packed[:size]))
    broken = bytearray(packed)
    broken[-6] ^= 1  # the CRC of the gzip stream
    assert "damaged" in refusal(write(tmp_path, bytes(broken)))
    assert "damaged" in refusal(write(tmp_path, bz2.compress(tar_bytes(*PLAIN))))


def test_other_files(tmp_path: Path) -> None:
    assert "can't be read" in refusal(tmp_path / "missing-1.0.tar.gz")
    assert "holds no files" in refusal(write_tar(tmp_path, member("p", kind=tarfile.DIRTYPE)))


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
    ]
) | st.text(max_size=6)
names = st.lists(pieces, max_size=6).map("/".join) | st.lists(pieces, max_size=4).map("".join)


def check_safe(files: list[SdistFile]) -> None:
    assert len({f.path for f in files}) == len(files)
    for file in files:
        path = PurePosixPath(file.path)
        assert not path.is_absolute() and str(path) == file.path
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
