"""What a process says is read line by line while it says it, however it is cut into pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.training.monitor.tail import follow


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_line_is_given_when_it_is_whole(log: Path) -> None:
    tail = follow(log)
    assert list(tail.lines()) == []  # not there yet
    append(log, b"one\ntw")
    assert list(tail.lines()) == ["one"]
    assert list(tail.lines()) == []
    append(log, b"o\nthree")
    assert list(tail.lines()) == ["two"]
    assert tail.rest() == "three"
    assert tail.rest() == ""


def test_each_state_of_a_progress_bar_is_a_line(log: Path) -> None:
    append(log, b"Progress:  0%\rProgress: 50%\rProgress: 100%\r\nend\r\n")
    assert list(follow(log).lines()) == ["Progress:  0%", "Progress: 50%", "Progress: 100%", "end"]


def test_a_carriage_return_and_its_newline_may_come_apart(log: Path) -> None:
    tail = follow(log)
    append(log, b"one\r")
    assert list(tail.lines()) == []
    append(log, b"\ntwo\n")
    assert list(tail.lines()) == ["one", "two"]


def test_reading_goes_on_from_an_offset(log: Path) -> None:
    append(log, "größer\nhal".encode())
    first = follow(log)
    assert list(first.lines()) == ["größer"]
    append(log, b"f\nmore\n")
    assert list(follow(log, first.offset).lines()) == ["half", "more"]


def test_bytes_that_are_no_text_are_replaced_and_a_character_may_come_in_halves(log: Path) -> None:
    tail = follow(log)
    append(log, b"caf" + "é".encode()[:1])
    assert list(tail.lines()) == []
    append(log, "é".encode()[1:] + b"\n\xff\xfe!\n")
    assert list(tail.lines()) == ["café", "\ufffd\ufffd!"]


def test_a_line_without_end_does_not_fill_the_memory(log: Path) -> None:
    append(log, b"x" * (3 << 20) + b"\nlast\n")
    lines = list(follow(log).lines())
    assert lines[-1] == "last"
    assert sum(map(len, lines[:-1])) == 3 << 20
    assert max(map(len, lines)) <= 2 << 20


@given(st.lists(st.binary(max_size=12), max_size=12), st.booleans())
def test_the_pieces_do_not_matter(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], newlines: bool
) -> None:
    log = tmp_path_factory.mktemp("tail") / "log"
    if newlines:
        pieces = [piece.replace(b"a", b"\n").replace(b"b", b"\r") for piece in pieces]
    tail = follow(log)
    given_out: list[str] = []
    for piece in pieces:
        append(log, piece)
        given_out += tail.lines()
    whole = follow(log)
    assert [*given_out, tail.rest()] == [*whole.lines(), whole.rest()]
