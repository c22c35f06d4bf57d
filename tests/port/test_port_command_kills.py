"""kill -9 of `patches port`: the same command goes on, and what comes out is what an undisturbed port gives."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.faults.stage import run_killed_at
from tests.port.upstream_versions import Versions, copy_versions
from tests.support import ok

KILLS = 4  # of each command, evenly spread


class Killed:
    """A port whose commands are killed; `words` are those of a command in any folder."""

    def __init__(self, versions: Versions, log: Path) -> None:
        self.versions, self.log = versions, log

    def words(self, *options: str) -> list[str]:
        folder, manifest = str(self.versions.folder), str(self.versions.manifest)
        return ["patches", "port", "up", "--folder", folder, "--manifest", manifest, *options]

    def changes(self, *options: str) -> int:
        """How many changes a command makes: it ends as it does, at a stop or at its end."""
        with contextlib.suppress(AssertionError):  # which a stop's exit code is to `run_killed_at`
            run_killed_at(0, self.words(*options), self.versions.env, self.log)
        return len(self.log.read_text().splitlines())

    def contents(self) -> dict[str, bytes]:
        """Every file of the project, whose own path is in the state."""
        found = self.versions.contents(self.versions.project)
        root = str(self.versions.root).encode()
        return {path: data.replace(root, b"ROOT") for path, data in found.items()}

    def kill(self, number: int, *options: str) -> None:
        killed, _ = run_killed_at(number, self.words(*options), self.versions.env, self.log)
        assert killed


def spread(changes: int) -> list[int]:
    return sorted({1 + changes * step // KILLS for step in range(KILLS)})


@pytest.fixture(scope="module")
def undisturbed(built: Versions, tmp_path_factory: pytest.TempPathFactory) -> Versions:
    """A port of three patches that stands at its stop."""
    made = copy_versions(built, tmp_path_factory.mktemp("undisturbed"))
    made.keep("0001", "0005", "0007")
    return made


def test_the_begin_is_killed(undisturbed: Versions, tmp_path: Path) -> None:
    counted = Killed(copy_versions(undisturbed, tmp_path / "counted"), tmp_path / "log")
    changes = counted.changes("--to", "v2")
    expected = counted.versions.contents(counted.versions.tree)
    for number in spread(changes):
        one = Killed(copy_versions(undisturbed, tmp_path / str(number)), tmp_path / "log")
        one.kill(number, "--to", "v2")
        stopped = one.versions.run(*one.words("--to", "v2"))
        assert stopped.returncode == 1 and "0005-conflict.patch: conflict" in stopped.stdout, stopped.stderr
        assert one.versions.contents(one.versions.tree) == expected


@pytest.mark.parametrize("option", ["--continue", "--skip", "--abort"])
def test_what_follows_a_stop_is_killed(undisturbed: Versions, tmp_path: Path, option: str) -> None:
    """An edit of the work tree survives, and nothing is skipped that nobody has seen."""
    at_stop = copy_versions(undisturbed, tmp_path / "stop")
    assert at_stop.run(*Killed(at_stop, tmp_path / "log").words("--to", "v2")).returncode == 1
    at_stop.resolve("pkg/conflict.py")

    def begun(name: str) -> Killed:
        made = copy_versions(at_stop, tmp_path / name)
        return Killed(made, tmp_path / "log")

    counted = begun("counted")
    changes = counted.changes(option)
    expected = counted.contents()
    for number in spread(changes):
        one = begun(str(number))
        one.kill(number, option)
        done = one.versions.run(*one.words(option))
        if option == "--abort" and done.returncode == 2:  # killed after its last removal
            assert "No port of up is there" in done.stderr
        else:
            ok(done)
        found = one.contents()
        assert found == expected


def test_a_stop_that_nobody_saw_is_not_skipped(undisturbed: Versions, tmp_path: Path) -> None:
    """The command is killed between the stop and its report: `--skip` then shows it first."""
    one = Killed(copy_versions(undisturbed, tmp_path / "one"), tmp_path / "log")
    counted = Killed(copy_versions(undisturbed, tmp_path / "counted"), tmp_path / "log")
    counted.changes("--to", "v2")
    log = (tmp_path / "log").read_text().splitlines()
    shown = max(number for number, line in enumerate(log, 1) if " os.rename " in line)
    one.kill(shown, "--to", "v2")  # before the last rename, by which the state has that the stop was shown
    done = one.versions.run(*one.words("--skip"))
    assert done.returncode == 1 and "0005-conflict.patch: conflict" in done.stdout
    assert "0005-conflict.patch: skipped" in ok(one.versions.run(*one.words("--skip"))).stdout
