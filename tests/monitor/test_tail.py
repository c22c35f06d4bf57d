"""What a process says is read line by line while it says it, however it is cut into pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.training.monitor.tail import Tail


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_line_is_given_when_it_is_whole(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "log")
    assert list(tail.lines()) == []  # not there yet
    append(tmp_path / "log", b"one\ntw")
    assert list(tail.lines()) == ["one"]
    append(tmp_path / "log", b"o\nthr" + "é".encode()[:1])
    assert list(tail.lines()) == ["two"]
    append(tmp_path / "log", "é".encode()[1:] + b"e\n\xff!\n")
    assert list(tail.lines()) == ["thrée", "\ufffd!"]
    assert list(tail.lines()) == []


def test_each_state_of_a_progress_bar_is_a_line(tmp_path: Path) -> None:
    append(tmp_path / "log", b"Progress:  0%\rProgress: 50%\rProgress: 100%\r\nend\r\n")
    assert list(Tail(tmp_path / "log").lines()) == ["Progress:  0%", "Progress: 50%", "Progress: 100%", "end"]


@given(st.lists(st.binary(max_size=12), max_size=12))
def test_the_pieces_do_not_matter(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    log = tmp_path_factory.mktemp("tail") / "log"
    tail, lines = Tail(log), list[str]()
    for piece in (*(piece.replace(b"a", b"\n").replace(b"b", b"\r") for piece in pieces), b"\n"):
        append(log, piece)
        lines += tail.lines()
    assert lines == list(Tail(log).lines())
