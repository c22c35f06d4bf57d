"""Random edits on two sides: the records replay to what git merges, and what git refuses is refused."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from npu_rl.common.errors import LockError
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.compose.replay_merge import replay
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.resolve.record_merge import merge_trees, record
from tests.support import File, Files, Repo

WORDS = st.sampled_from(["", "", "}", "return x", "x = 1", "y = 2", "def f():", "def g():", "else:"])
LINES = st.lists(WORDS, min_size=4, max_size=24)
NAMES = ("a.py", "b.py", "sub/c.py")
Side = dict[str, tuple[list[str], bool]]  # lines, executable


@st.composite
def edited(draw: st.DrawFn, base: Side) -> Side:
    """A side: each file is left, edited, renamed (and edited), deleted or made executable; one may be new."""
    side: Side = {}
    for name, (lines, executable) in base.items():
        what = draw(st.sampled_from(["keep", "edit", "edit", "edit", "rename", "delete", "mode", "folder"]))
        if what == "delete":
            continue
        if what in ("edit", "rename", "mode"):
            lines = list(lines)
            for _ in range(draw(st.integers(0 if what != "edit" else 1, 3))):
                at = draw(st.integers(0, len(lines)))
                lines[at : at + draw(st.integers(0, 2))] = draw(st.lists(WORDS, max_size=2))
        target = {"rename": f"new-{name.replace('/', '-')}", "folder": f"{name}/inside.py"}.get(what, name)
        side[target] = (lines, executable or what == "mode")
    if draw(st.booleans()):
        side["added.py"] = (draw(LINES), False)
    return side


@st.composite
def histories(draw: st.DrawFn) -> tuple[Side, Side, Side]:
    base: Side = {name: (draw(LINES), False) for name in NAMES}
    return base, draw(edited(base)), draw(edited(base))


def files(side: Side, before: Side) -> Files:
    gone: Files = {name: None for name in before if name not in side}
    there = {
        name: File("".join(f"{line}\n" for line in lines), "100755" if executable else "100644")
        for name, (lines, executable) in side.items()
    }
    return {**gone, **there}


@settings(max_examples=20, deadline=None)
@given(histories())
def test_our_merge_is_gits_merge(sides: tuple[Side, Side, Side]) -> None:
    base, ours, theirs = sides
    with tempfile.TemporaryDirectory() as name:
        up = Repo(Path(name, "up.git"))
        root = up.commit(files(base, {}))
        left = up.commit(files(ours, base), "left", on="left", parents=[root])
        right = up.commit(files(theirs, base), "right", on="right", parents=[root])
        by_git = subprocess.run(
            ["git", "merge-tree", "--write-tree", left, right],
            cwd=up.path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        base_tree, left_tree, right_tree = (up.tree(oid) for oid in (root, left, right))
        here = _database(Path(name, "here"), up)
        try:
            result = merge_trees(here, base_tree, left_tree, right_tree, "test")
        except LockError as error:
            assert by_git.returncode == 1, error
            assert "conflicts" in str(error)
            return
        finally:
            here.close()
        assert (by_git.returncode, by_git.stdout.split()[0]) == (0, result)
        here = _database(Path(name, "again"), up, Path(name, "here"))
        records = record(here, base_tree, left_tree, right_tree, result, "test")
        here.close()
        elsewhere = _database(Path(name, "elsewhere"), up)  # upstream's objects and the records, nothing else
        assert replay(elsewhere, left_tree, records, "test") == result
        elsewhere.close()


def _database(path: Path, *lent: Repo | Path) -> Trees:
    init_bare(path)
    objects = [(r.path if isinstance(r, Repo) else r) / "objects" for r in lent]
    return Trees(Git(path, alternates=tuple(objects)))
