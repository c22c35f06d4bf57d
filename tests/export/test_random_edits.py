"""Property: export, lock and setup give the tree of the last commit, whatever was edited."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.export.conftest import LINES, TEN, Export, build

PATHS = (
    "lib/core.py",
    "lib/same.py",
    "lib/new.py",
    "lib/sub/más.py",
    "top.py",
    "other/deep/leaf.py",
    "other/a b.py",
)
LINE = st.text("abc é\t#-+", max_size=6)
CONTENT = st.one_of(
    st.none(),
    st.lists(LINE, max_size=6).map("\n".join),
    st.tuples(st.integers(0, 39), st.lists(LINE, max_size=3)).map(
        lambda edit: "".join(
            "".join(f"{text}\n" for text in edit[1]) if n == edit[0] else line
            for n, line in enumerate(LINES.splitlines(keepends=True))
        )
    ),
)
COMMITS = st.lists(
    st.dictionaries(st.sampled_from(PATHS), CONTENT, min_size=1, max_size=4), min_size=1, max_size=4
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Export:
    return build(tmp_path_factory.mktemp("random"), {"0001-ten.patch": TEN})


@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(COMMITS)
@pytest.mark.second
def test_random_edits_give_the_same_tree(template: Export, commits: list[dict[str, str | None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("project", "w"):
            shutil.copytree(template.root / name, Path(folder, name), symlinks=True)
        stack = Export(Path(folder), template.env)
        for number, files in enumerate(commits):
            for path, text in files.items():
                if text is None:
                    (stack.code / path).unlink(missing_ok=True)
                else:
                    stack.write(path, text)
            stack.git("add", "-A")
            stack.git("commit", "-q", "--allow-empty", "-m", f"Edit {number}")
        stack.round_trip()
