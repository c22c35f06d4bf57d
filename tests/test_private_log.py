"""A log of one user's alone: its mode, its bound, and what is refused quietly."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from npu_rl.common import private_log
from npu_rl.common.private_log import KEPT, PrivateLog, state_folder
from tests.training.processes import FORKS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "npu-rl"


def test_only_its_user_may_read_it(folder: Path) -> None:
    before = os.umask(0)
    try:
        assert PrivateLog(folder, "log").write("a\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "log").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_one_that_others_could_read_is_closed_to_them(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o700)
    (folder / "log").write_text("a\n")
    (folder / "log").chmod(0o644)
    assert PrivateLog(folder, "log").write("b\n")
    assert stat.S_IMODE((folder / "log").stat().st_mode) == 0o600
    assert (folder / "log").read_text() == "a\nb\n"


def test_it_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_log, "LARGEST", 100)
    log = PrivateLog(folder, "log")
    for number in range(200):
        assert log.write(f"line {number}\n")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["log", *(f"log.{number}" for number in range(1, KEPT))]
    assert all(path.stat().st_size <= 100 for path in folder.iterdir())
    text = "".join((folder / name).read_text() for name in reversed(names))
    lines = text.splitlines()
    assert lines == [f"line {number}" for number in range(200 - len(lines), 200)]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
    assert not log.write("x" * 101)


def write_lines(folder: Path, name: str) -> None:
    private_log.LARGEST, private_log.KEPT = 2000, 50
    log = PrivateLog(folder, "log")
    for number in range(300):
        assert log.write(f"{name} {number}\n")


def test_several_processes_lose_no_line(folder: Path) -> None:
    processes = [FORKS.Process(target=write_lines, args=(folder, name)) for name in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    lines = [line for path in folder.iterdir() for line in path.read_text().splitlines()]
    assert sorted(lines) == sorted(f"{name} {n}" for name in "abc" for n in range(300))


def test_a_log_that_went_away_is_begun_again(folder: Path) -> None:
    log = PrivateLog(folder, "log")
    assert log.write("a\n")
    (folder / "log").unlink()
    assert log.write("b\n")
    assert (folder / "log").read_text() == "b\n"


def _link(folder: Path, other: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "log").symlink_to(other)


def _second_name(folder: Path, other: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "log").hardlink_to(other)


def _fifo(folder: Path, other: Path) -> None:
    folder.mkdir(parents=True)
    os.mkfifo(folder / "log")


def _folder_of_that_name(folder: Path, other: Path) -> None:
    (folder / "log").mkdir(parents=True)


def _linked_folder(folder: Path, other: Path) -> None:
    folder.parent.mkdir()
    (other.parent / "elsewhere").mkdir()
    folder.symlink_to(other.parent / "elsewhere")


def _open_folder(folder: Path, other: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)


def _file_above(folder: Path, other: Path) -> None:
    folder.parent.write_text("")


@pytest.mark.parametrize(
    "lay",
    [_link, _second_name, _fifo, _folder_of_that_name, _linked_folder, _open_folder, _file_above],
    ids=lambda lay: lay.__name__,
)
def test_what_leads_elsewhere_is_refused_quietly(tmp_path: Path, folder: Path, lay) -> None:  # type: ignore[no-untyped-def]
    other = tmp_path / "other"
    other.write_text("untouched")
    lay(folder, other)
    log = PrivateLog(folder, "log")
    assert not log.write("a\n")
    assert not log.write("b\n")
    assert other.read_text() == "untouched"
    assert not (tmp_path / "elsewhere").exists() or list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_nothing_is_made_in_the_home_of_another_user(tmp_path: Path) -> None:
    """As under `sudo`, which may keep HOME."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 12345, 12345)
    assert not PrivateLog(home / ".local/state/npu-rl", "log").write("a\n")
    assert list(home.iterdir()) == []


def test_no_room_is_no_error(folder: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    log = PrivateLog(folder, "log")
    assert log.write("a\n")
    assert log._file is not None
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._file)
    os.close(full)
    log._is_current = lambda handle: True  # type: ignore[method-assign]
    assert not log.write("b\n")
    assert not log.write("c\n")


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, Path("/s/npu-rl")),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, Path("/h/.local/state/npu-rl")),
        ({"HOME": "/h"}, Path("/h/.local/state/npu-rl")),
        ({"HOME": ""}, None),
        ({}, None),
    ],
)
def test_where_it_lies(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], place: Path | None
) -> None:
    for name in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert state_folder() == place
