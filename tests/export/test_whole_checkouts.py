"""Commits in `src/NAME`, where the whole repository of a component is."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import assert_told, ok
from tests.workspace.stack import Stack, build, git_in


@dataclass
class Checkout:
    """The workspace `w` of a stack whose `gamma` is a whole checkout."""

    stack: Stack

    @property
    def root(self) -> Path:
        return self.stack.home / "w"

    def git(self, root: str, *args: str) -> str:
        return git_in(self.root / root, self.stack.env, *args)

    def commit(self, root: str, message: str, files: dict[str, str]) -> None:
        for path, text in files.items():
            (self.root / root / path).write_text(text)
        self.git(root, "add", "-A")
        self.git(root, "commit", "-qm", message)

    def export(self) -> dict[str, str]:
        """The states of the patches of gamma."""
        body = json.loads(ok(self.stack.run("patches", "export", "-w", self.root, "--json")).stdout)
        return {
            row["path"].rpartition("/")[2]: row["state"]
            for row in body["patches"]
            if row["component"] == "gamma"
        }

    def refused(self, *words: str, code: int = 3) -> None:
        before = self.beside()
        assert_told(self.stack.run("patches", "export", "-w", self.root), *words, code=code)
        assert self.beside() == before

    def beside(self) -> dict[str, bytes]:
        found = [self.stack.old, *sorted((self.stack.home / "patches").rglob("*"))]
        return {str(path): path.read_bytes() for path in found if path.is_file()}

    def lay(self) -> None:
        ok(self.stack.run("lock", "-m", self.stack.old))
        ok(self.stack.setup(self.root))

    def tree(self, root: str) -> str:
        return self.git(root, "rev-parse", "HEAD^{tree}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    stack = build(tmp_path_factory.mktemp("whole"))
    stack.make(stack.home / "w")
    return stack


@pytest.fixture
def whole(made: Stack, tmp_path: Path) -> Checkout:
    home = tmp_path / "stack"
    shutil.copytree(made.home, home, symlinks=True, ignore=shutil.ignore_patterns("*.git"))
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    checkout = Checkout(Stack(home, {**made.env, **state}))
    ok(checkout.stack.setup(checkout.root))  # the receipt names the manifest that was copied
    return checkout


def test_commits_become_patches_and_setup_lays_the_same_tree(whole: Checkout) -> None:
    whole.commit(
        "src/gamma", "Three is drei", {"build.txt": "one\nzwei\ndrei\n", "gamma/__init__.py": "G = 3\n"}
    )
    tree = whole.tree("src/gamma")
    assert whole.export() == {"0001-zwei.patch": "unchanged", "0002-three-is-drei.patch": "new"}
    text = (whole.stack.home / "patches/gamma/0002-three-is-drei.patch").read_text()
    assert "+drei" in text and "+G = 3" in text
    before = whole.beside()
    whole.export()
    assert whole.beside() == before
    whole.lay()
    assert whole.tree("src/gamma") == tree
    assert (whole.root / "code/gamma/__init__.py").read_text() == "G = 3\n"


@pytest.mark.second
def test_a_fixup_changes_the_patch_and_a_drop_removes_it(whole: Checkout) -> None:
    (whole.root / "src/gamma/build.txt").write_text("eins\nzwei\nthree\n")
    at = whole.git("src/gamma", "log", "--format=%H", "--grep", "Apply 0001-zwei")
    whole.git("src/gamma", "commit", "-qa", "--fixup", at)
    whole.refused("is not squashed yet")
    whole.git("src/gamma", "-c", "sequence.editor=:", "rebase", "-qi", "--autosquash", f"{at}^")
    assert whole.export() == {"0001-zwei.patch": "changed"}
    whole.git("src/gamma", "reset", "-q", "--hard", "HEAD^")
    assert whole.export() == {"0001-zwei.patch": "dropped"}
    whole.lay()
    assert (whole.root / "src/gamma/build.txt").read_text() == "one\ntwo\nthree\n"


@pytest.mark.second
def test_commits_in_both_places(whole: Checkout) -> None:
    whole.commit("src/gamma", "Only a build", {"build.txt": "one\nzwei\ndrei\n"})
    whole.commit("code", "Beta", {"beta/b.py": "B = 2\n"})
    trees = whole.tree("src/gamma"), whole.tree("code")
    assert whole.export()["0002-only-a-build.patch"] == "new"
    text = whole.stack.old.read_text()
    whole.stack.old.write_text(text.replace("  beta:\n", "  beta:\n    patches: [./patches/beta]\n"))
    whole.lay()  # the files of the one are not the other's
    assert (whole.tree("src/gamma"), whole.tree("code")) == trees
    whole.commit("src/gamma", "In code, too", {"gamma/__init__.py": "G = 3\n"})
    whole.commit("code", "Beta again", {"beta/b.py": "B = 3\n"})
    whole.refused("src/gamma change files that code has, too", "gamma/__init__.py")
    whole.commit("code", "Gamma", {"gamma/__init__.py": "G = 4\n"})
    whole.refused("Both code and src/gamma have commits that change gamma")


def test_what_is_refused_in_code_is_refused_there(whole: Checkout) -> None:
    (whole.root / "src/gamma/stray.txt").write_text("x\n")
    whole.refused("gamma has changes that are in no commit", "stray.txt")
    (whole.root / "src/gamma/stray.txt").unlink()
    whole.git("src/gamma", "commit", "-q", "--allow-empty", "-m", "Nothing")
    assert whole.export() == {"0001-zwei.patch": "unchanged"}
    whole.git("src/gamma", "checkout", "-q", "--orphan", "fresh")
    whole.git("src/gamma", "commit", "-qm", "All in one")
    whole.refused("The step `Pin gamma at", "of src/gamma is missing")
