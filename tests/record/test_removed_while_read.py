"""A run that another command removes while its record is read: no such run, or what was read, and never a traceback."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from npu_rl.cli.runs_list import list_runs
from npu_rl.cli.runs_show import show
from npu_rl.cli.runs_stop import stop
from npu_rl.common.errors import NpuRlError
from npu_rl.training.record.run_errors import NoSuchRun
from tests.browse.recorded import run

_EVENTS = {"open", "os.listdir", "os.scandir"}


class _Remover:
    """Removes a run right before npu-rl opens a file or lists a folder of it for the nth time."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.left = 0

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        folder = self.folder
        if folder is None or event not in _EVENTS or not str(arguments[0]).startswith(str(folder)):
            return
        self.left -= 1
        if self.left < 0:
            self.folder = None
            shutil.rmtree(folder)

    @contextmanager
    def at(self, folder: Path, number: int) -> Iterator[None]:
        self.folder, self.left = folder, number
        try:
            yield
        finally:
            self.folder = None


REMOVER = _Remover()
sys.addaudithook(REMOVER)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NPU_RL_RUNS", str(tmp_path))
    return tmp_path


def each_moment(root: Path, action: Callable[[], None], outcome: str | None) -> list[NpuRlError]:
    """Remove the run at each of its files in turn, until none is read any more."""
    found = []
    for number in range(0, 200, 2):
        for attempt in run(
            root, "demo", outcome=outcome
        ).attempts:  # begun here: another host's can't be stopped
            (attempt.folder / "host.json").write_text(json.dumps({"hostname": socket.gethostname()}))
        try:
            with REMOVER.at(root / "demo", number):
                action()
        except NpuRlError as error:
            found.append(error)
        if (root / "demo").exists():
            assert number > 2
            return found
    raise AssertionError("it reads a file again and again")


@pytest.mark.parametrize(("command", "outcome"), [(show, "failed"), (stop, None)])
def test_there_is_no_such_run(root: Path, command: Callable[[str], None], outcome: str | None) -> None:
    errors = each_moment(root, lambda: command("demo"), outcome)
    assert errors and {type(error) for error in errors} == {NoSuchRun}
    assert errors[0].what == "Unknown run demo" and errors[0].exit_code == 1


def test_list_skips_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(root, "other")

    def listed() -> None:
        list_runs()
        text = capsys.readouterr().out
        assert "other" in text and "Unreadable" not in text

    assert each_moment(root, listed, "done") == []
