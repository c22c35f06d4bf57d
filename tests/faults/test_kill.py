"""kill -9 at step boundaries and at random moments: afterwards there is the old workspace, the new one or none.

26 kills by default, spread over all boundaries, others on each Python; `NPU_RL_FAULTS=500` makes it 500.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from tests.faults.stage import Scene, Stage, timed
from tests.support import git

pytestmark = pytest.mark.second

KILLS = max(10, int(os.environ.get("NPU_RL_FAULTS") or 26))  # the gate runs them twice, at other changes
FIRST, UPDATE, DISCARD = (range(KILLS * part // 10) for part in (3, 3, 2))
MOMENTS = range(KILLS - len(FIRST) - len(UPDATE) - len(DISCARD))

Totals = dict[str, int]


@pytest.fixture
def scene(stage: Stage, tmp_path: Path) -> Scene:
    return Scene(stage, tmp_path / "scene")


@pytest.fixture(scope="session")
def totals(stage: Stage) -> Totals:
    """How many changes each kind of setup makes."""
    scene = Scene(stage, stage.home / "count")
    counts = {}
    for kind in ("first", "update", "discard"):
        begin(scene, kind)
        killed, events = scene.killed_at(0, *command(kind))
        assert not killed
        counts[kind] = len(events)
        scene.check_again(*command(kind))
    return counts


@pytest.fixture(scope="session")
def seconds(stage: Stage) -> dict[str, float]:
    """How long each kind takes undisturbed."""
    scene = Scene(stage, stage.home / "time")
    times = {}
    for kind in ("first", "update"):
        begin(scene, kind)
        times[kind] = timed(scene, *command(kind))
    return times


def begin(scene: Scene, kind: str) -> None:
    scene.reset(old=kind != "first")
    if kind == "discard":
        do_work(scene)


def command(kind: str) -> list[str]:
    return {"first": ["old"], "update": ["new"], "discard": ["new", "--discard"]}[kind]


def boundary(number: int, numbers: range, total: int) -> int:
    """The change to die before: evenly spread over all of them, and between those of other Pythons."""
    shift = (sys.version_info.minor % 4) / 4  # 3.10 and 3.12, which the gate runs, are half a step apart
    return 1 + int((number + shift) * total / len(numbers))


@pytest.mark.parametrize(
    ("kind", "number"), [("first", number) for number in FIRST] + [("update", number) for number in UPDATE]
)
def test_setup(scene: Scene, totals: Totals, kind: str, number: int) -> None:
    begin(scene, kind)
    at = boundary(number, FIRST if kind == "first" else UPDATE, totals[kind])
    killed, events = scene.killed_at(at, *command(kind))
    assert killed or len(events) < at
    scene.check("old", "none" if kind == "first" else "new")
    scene.check_again(*command(kind))


@pytest.mark.parametrize("number", DISCARD)
def test_discard_never_loses_work(scene: Scene, totals: Totals, number: int) -> None:
    begin(scene, "discard")
    at = boundary(number, DISCARD, totals["discard"])
    killed, events = scene.killed_at(at, "new", "--discard")
    assert killed or len(events) < at
    scene.finish()
    assert has_work(scene)
    scene.check_again("new", "--discard")
    assert has_work(scene)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds a process's children in /proc")
@pytest.mark.parametrize("number", MOMENTS)
def test_any_moment(scene: Scene, seconds: dict[str, float], number: int) -> None:
    """Everything dies at once: git with its helpers too."""
    kind = ("first", "update")[number % 2]
    begin(scene, kind)
    scene.killed_after(
        random.Random(number + sys.version_info.minor).uniform(0.02, seconds[kind]), *command(kind)
    )
    scene.check("old", "new" if kind == "update" else "none")
    scene.check_again(*command(kind))


def test_killed_twice_in_a_row(scene: Scene, totals: Totals) -> None:
    """The command that finishes can be killed as well."""
    total = totals["update"]
    for first in (0.6, 0.75):
        begin(scene, "update")
        scene.killed_at(int(total * first), "new")
        for at in (8, 16, 3):
            scene.killed_at(at, "new")
        scene.check("old", "new")
        scene.check_again("new")


def test_killed_and_then_another_lock(scene: Scene, totals: Totals) -> None:
    """A setup that was killed is of no consequence for the next one, whatever that is."""
    for part in (0.3, 0.7, 0.73, 0.8, 0.95):
        begin(scene, "update")
        scene.killed_at(int(totals["update"] * part), "new")
        scene.check_again("old", whole=False)


# -- work of a person ----------------------------------------------------------------------------------


def do_work(scene: Scene) -> None:
    """An edit, a new file, a file beside `src`, and a commit on a branch."""
    paths = scene.paths
    (paths.code / "one/more.py").write_text("edited by me\n")
    (paths.code / "mine.txt").write_text("made by me\n")
    (paths.root / "src/thesis").mkdir()
    (paths.root / "src/thesis/chapter.tex").write_text("years of work\n")
    repository = paths.git / "code"
    commit = git("commit-tree", "HEAD^{tree}", "-m", "committed by me", git_dir=repository)
    git("update-ref", "refs/heads/mine", commit, git_dir=repository)


def has_work(scene: Scene) -> bool:
    """Whether all of it is in the workspace or among what was put aside."""
    paths = scene.paths
    homes = [paths.root, *(paths.kept.iterdir() if paths.kept.is_dir() else ())]
    return (
        _any(homes, "code/one/more.py", "edited by me\n")
        and _any(homes, "code/mine.txt", "made by me\n")
        and _any(homes, "src/thesis/chapter.tex", "years of work\n")
        and any(_has_commit(home) for home in (paths.git, *(home / "git" for home in homes[1:])))
    )


def _any(homes: list[Path], path: str, text: str) -> bool:
    return any((home / path).is_file() and (home / path).read_text() == text for home in homes)


def _has_commit(git_home: Path) -> bool:
    if not (git_home / "code/refs/heads/mine").is_file():
        return False
    return git("log", "-1", "--format=%s", "mine", git_dir=git_home / "code") == "committed by me"
