"""Moves under the journal: killed before each of their steps, failing at each of them, and the paths they are given."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.common.errors import HostError
from npu_rl.stack.installation import file_moves, move_journal
from npu_rl.stack.installation.move_journal import FOLDER, InstallationFolder, MoveJournal
from npu_rl.stack.installation.target_python import TargetPython
from tests.faults.killer import watch
from tests.installation.made_packages import tree

SITE = "lib/python3.11/site-packages"
OLD = {
    f"{SITE}/one/__init__.py": "1",
    f"{SITE}/one/old.py": "1",
    f"{SITE}/one-1.dist-info/RECORD": "",
    "bin/one": "1",
}
STAYS = {f"{SITE}/host/__init__.py": "h", f"{SITE}/one/mine.txt": "m", "bin/python": "p", "share/other": "o"}
NEW = {
    f"{SITE}/one/__init__.py": "2", f"{SITE}/one/new/deep.py": "2", f"{SITE}/one-2.dist-info/RECORD": "",
    f"{SITE}/two.py": "2", "bin/one": "2", "share/two/table.txt": "2",
}  # fmt: skip
SURE = ("staging-0123456789ab", "old-0123456789ab")


def written(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def target(root: Path) -> TargetPython:
    site = root / SITE
    return TargetPython(
        str(root / "bin/python"), "3.11.7", "cpython", "x", ("glibc", "2.40"), root, site, root / "bin", (site,), {}
    )  # fmt: skip


def scene(root: Path) -> tuple[InstallationFolder, MoveJournal]:
    """An environment with an old package, and what is staged to replace it."""
    written(root, {**OLD, **STAYS})
    folder = InstallationFolder(root)
    staging = folder.path / SURE[0]
    written(staging, NEW)
    leaving = file_moves.outgoing(target(root), OLD)
    coming, in_the_way = file_moves.incoming(root, staging, leaving)
    assert in_the_way == []
    return folder, MoveJournal(*SURE, tuple(leaving), tuple(coming), 2)


def content(root: Path) -> dict[str, str]:
    return {
        name: text for name, text in tree(root).items() if not name.startswith(FOLDER) and text != "folder"
    }


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, str]]:
    """The environment before, and as it has to be afterwards."""
    before, after = tmp_path_factory.mktemp("before"), tmp_path_factory.mktemp("after")
    written(before, {**OLD, **STAYS})
    written(after, {**STAYS, **NEW})
    return content(before), content(after)


def killed(number: int, call: Callable[[], object], log: Path) -> bool:
    """Call in a process that dies before its change with this number; whether it did."""
    pid = os.fork()
    if pid == 0:
        try:
            watch(number, str(log))
            call()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def test_killed_before_any_step_the_next_one_finishes(
    tmp_path: Path, states: tuple[dict[str, str], dict[str, str]]
) -> None:
    before, after = states
    for number in range(1, 200):
        root = tmp_path / str(number)
        folder, journal = scene(root)
        if not killed(number, partial(move_journal.carry_out, folder, journal), tmp_path / "log"):
            break
        if not folder.is_interrupted():
            assert content(root) in (before, after)  # before the journal, or after its removal
            continue
        # Every fourth one is killed a second time while it is finished; a fork is what this test costs.
        if number % 4 == 0:
            killed(1 + number % 13, partial(move_journal.finish, folder), tmp_path / "log")
        move_journal.finish(folder)
        assert content(root) == after, number
        assert not folder.is_interrupted()
        assert [path.name for path in folder.path.iterdir() if path.name in SURE] == []
    else:
        raise AssertionError("it never ends")
    assert number > 30
    assert content(root) == after


def test_an_error_at_any_move_puts_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: tuple[dict[str, str], dict[str, str]]
) -> None:
    before, _ = states
    real = os.rename
    for number in range(1, 100):
        root = tmp_path / str(number)
        folder, journal = scene(root)
        left = [number]

        def failing(old: str, new: str, left: list[int] = left, **handles: int) -> None:
            moved = old not in (".journal.json",) and not old.startswith(".journal.json.")
            left[0] -= moved
            if moved and left[0] == 0:
                raise OSError(28, "No space left on device", old)
            real(old, new, **handles)

        monkeypatch.setattr(os, "rename", failing)
        try:
            move_journal.carry_out(folder, journal)
        except OSError:
            monkeypatch.setattr(os, "rename", real)
            assert content(root) == before, number
            assert not folder.is_interrupted()
        else:
            break
    assert number > len(NEW)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("staging", "../../etc"), ("old", "site-packages"), ("coming", ["../outside"]), ("leaving", ["/etc/passwd"]),
        ("leaving", [f"{FOLDER}/busy.lock"]), ("coming", [3]), ("packages", None), ("leaving", "ab/../.."),
    ],
)  # fmt: skip
def test_a_damaged_journal_moves_nothing(tmp_path: Path, key: str, value: object) -> None:
    import json

    folder, journal = scene(tmp_path)
    journal.write(folder)
    body = json.loads(folder.journal.read_text())
    folder.journal.write_text(json.dumps({**body, key: value}))
    before = content(tmp_path)
    with pytest.raises(HostError, match="can't be read"):
        move_journal.finish(folder)
    assert content(tmp_path) == before


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    folder = InstallationFolder(tmp_path)
    with folder.alone(), pytest.raises(HostError, match="Another npu-rl"), folder.alone():
        pass
    assert not folder.path.exists()


NAMES = st.text(st.sampled_from("ab./,\"' \n-_é"), min_size=0, max_size=12)


@given(st.lists(NAMES, max_size=6))
def test_a_record_names_nothing_outside(names: list[str]) -> None:
    import csv
    import io

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([name, "", ""] for name in names)
    for path in file_moves.recorded_files(text.getvalue(), SITE):
        assert not path.startswith(("/", "../")) and ".." not in PurePosixPath(path).parts


@given(st.text(max_size=60))
def test_any_text_is_a_record_of_some_kind(text: str) -> None:
    for path in file_moves.recorded_files(text, SITE):
        assert not path.startswith("/") and ".." not in PurePosixPath(path).parts


def test_a_folder_goes_as_a_whole_with_its_byte_code_only_if_nothing_else_is_in_it(tmp_path: Path) -> None:
    files = {
        f"{SITE}/one/__init__.py": "",
        f"{SITE}/one/sub/a.py": "",
        "bin/one": "",
        f"{SITE}/single.py": "",
    }
    cached = {
        f"{SITE}/one/sub/__pycache__/a.cpython-311.pyc": "",
        f"{SITE}/__pycache__/single.cpython-311.pyc": "",
    }
    written(tmp_path, {**files, **cached, f"{SITE}/__pycache__/other.cpython-311.pyc": ""})
    assert file_moves.outgoing(target(tmp_path), files) == [
        "bin/one", f"{SITE}/__pycache__/single.cpython-311.pyc", f"{SITE}/one", f"{SITE}/single.py"
    ]  # fmt: skip
    written(tmp_path, {f"{SITE}/one/sub/notes.txt": ""})
    assert file_moves.outgoing(target(tmp_path), files) == [
        "bin/one", f"{SITE}/__pycache__/single.cpython-311.pyc", f"{SITE}/one/__init__.py",
        f"{SITE}/one/sub/__pycache__", f"{SITE}/one/sub/a.py", f"{SITE}/single.py",
    ]  # fmt: skip


def test_a_folder_in_the_way_of_a_file_is_refused(tmp_path: Path) -> None:
    written(tmp_path, {f"{SITE}/two.py/inside": "x"})
    written(tmp_path / FOLDER / SURE[0], {f"{SITE}/two.py": "2"})
    _, in_the_way = file_moves.incoming(tmp_path, tmp_path / FOLDER / SURE[0], [])
    with pytest.raises(HostError, match="A folder is where a package has a file"):
        file_moves.check_in_the_way(target(tmp_path), in_the_way, [], [])
