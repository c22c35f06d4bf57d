"""The nine patches of verl 55e3c5b (of commit 58a9aa7) in three later versions, as people would carry them."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from npu_rl.stack.hunks.hunk_match import apply_exact, locate
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.port.port_judgement import MarkerNames, PortedHunk
from npu_rl.stack.port.port_patch import port_patch

pytestmark = pytest.mark.upstreams

PATCHES = Path(__file__).with_name("verl-55e3c5b")
PIN = "55e3c5bc09c85dba09f736eef476f110ad641b75"
NEITHER = {
    "v0.6.1": {
        ("0003-rollout-offload", 1): "merged",  # an import; upstream added one beside it
        ("0003-rollout-offload", 3): "conflict",  # the prefix cache is reset elsewhere
        ("0004-rollout-dp-groups", 1): "conflict",  # the branch that it changes was taken out
        ("0005-chunked-prefill-check", 2): "merged",  # the line above was changed
        ("0006-rollout-compile", 1): "merged",  # an import
    },
    "v0.7.1": {
        ("0006-rollout-compile", 1): "conflict",  # the import below which it stood is gone
        ("0006-rollout-compile", 3): "conflict",  # the function returns at another place
        ("0007-on-policy-logprob", 2): "merged",  # a list to which upstream added, too
        ("0008-repatch-required", 1): "merged",  # the lines around it
    },
    "v0.8.0": {("0010-router-bias", 1): "merged"},  # an import
}
"""Of the hunks whose old lines stand nowhere in a file that is still there, what becomes of them, and why."""
COUNTS = {"v0.6.1": (5, 10, 5, 0), "v0.7.1": (2, 5, 4, 9), "v0.8.0": (1, 2, 1, 16)}
"""By exact match of a hunk's old lines: at their line, at another one, nowhere, and of a file that is gone."""


class TagVersion(NamedTuple):
    """A tag of a bare repository, with the files that ports have changed."""

    repository: Path
    tag: str
    changed: dict[str, bytes]

    def read(self, path: str) -> bytes | None:
        return self.changed.get(path) or show(self.repository, self.tag, path)

    def obstacle(self, path: str) -> str:
        return ""

    def files(self) -> list[str]:
        return git(self.repository, "ls-tree", "-r", "--name-only", self.tag, "verl").decode().split()


def git(repository: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", repository, *words], capture_output=True, check=True).stdout


def show(repository: Path, revision: str, path: str) -> bytes | None:
    done = subprocess.run(
        ["git", "-C", repository, "show", f"{revision}:{path}"], capture_output=True, check=False
    )
    return done.stdout if done.returncode == 0 else None


def ported(repository: Path, tag: str) -> Iterator[tuple[str, str, PortedHunk]]:
    """Yield each hunk with the patch's name, and how its old lines match: exact, offset, missing, or gone."""
    version, old = TagVersion(repository, tag, {}), dict[str, bytes | None]()
    for name in (PATCHES / "series").read_text().split():
        patch = parse_patch((PATCHES / name).read_bytes(), name=name)
        for file in patch.files:
            if file.path not in old:
                old[file.path] = show(repository, PIN, file.path)
        found = port_patch(patch, old.get, version, None, MarkerNames(tag, name))
        for file, judged in zip(patch.files, found.files, strict=True):
            text = version.read(file.path)
            for hunk, result in zip(file.hunks, judged.hunks, strict=True):
                match = "gone" if text is None else locate(text, hunk).kind
                yield name.removesuffix(".patch"), match, result
            old[file.path] = apply_exact(old[file.path], file, name=name)
            if found.is_clean and judged.after is not None:
                version.changed[file.path] = judged.after


@pytest.mark.parametrize("tag", COUNTS)
def test_each_hunk_has_the_state_that_its_lines_have(upstreams: Path, tag: str) -> None:
    repository = upstreams / "verl-project+verl" / "repo"
    hunks = list(ported(repository, tag))
    counts = Counter(match for _, match, _ in hunks)
    found = tuple(counts[kind] for kind in ("exact", "offset", "missing", "gone"))
    assert found == COUNTS[tag] and sum(found) == 20
    same = {"exact": "exact", "offset": "moved", "gone": "target gone"}
    for name, match, hunk in hunks:
        assert hunk.state == (same.get(match) or NEITHER[tag][name, hunk.number]), (name, hunk)


def test_where_what_is_gone_may_be(upstreams: Path) -> None:
    """The places to which the adaptations were carried by hand."""
    repository = upstreams / "verl-project+verl" / "repo"
    hunks = {(name, hunk.number): hunk for name, _, hunk in ported(repository, "v0.8.0")}
    first = {key: hunk.places[0].path for key, hunk in hunks.items() if hunk.places}
    assert first["0008-repatch-required", 1] == "verl/workers/engine/mindspeed/transformer_impl.py"
    assert first["0007-on-policy-logprob", 3] == "verl/workers/utils/losses.py"
    assert hunks["0007-on-policy-logprob", 3].places[0].inside == "ppo_loss"
