"""The corpus of real hunks, judged by `port_patch`: what it must not say, and how often it may leave work to people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from npu_rl.stack.port.port_judgement import MarkerNames, PortedHunk
from npu_rl.stack.port.port_patch import port_patch
from tests.port.corpus import Answer, Case, load_corpus
from tests.port.corpus_mirrors import MirrorHistory, MirrorVersion, UpstreamMirrors

pytestmark = pytest.mark.upstreams

NEVER_WRONG = ("exact", "already upstream")
MOST_TRIVIAL_CONFLICTS = 4


@dataclass(frozen=True)
class JudgedHunk:
    """A hunk of the corpus with what the tool says of it."""

    case: Case
    answer: Answer
    found: PortedHunk

    @property
    def is_needless_conflict(self) -> bool:
        """Whether a person would have carried it over, or dropped it, without thinking."""
        return self.answer.trivial and self.found.state in ("conflict", "target gone")

    def __str__(self) -> str:
        differs = " " if self.found.state == self.answer.answer else "*"
        where = f"{self.answer.path}, hunk {self.answer.hunk} to {self.case.to_name}"
        row = f"{differs} {self.answer.answer:16} {self.found.state:16} {where}: {self.found.why}"
        if not self.is_needless_conflict and self.answer.commit not in (None, self.found.commit):
            row += f" (commit {self.found.commit}, not {self.answer.commit})"
        places = [place.path for place in self.found.places]
        if places and self.answer.place not in (None, *places):
            row += f" (places {places}, not {self.answer.place})"
        return row


@pytest.fixture(scope="module")
def judged(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[JudgedHunk]]:
    """Every hunk of the corpus, judged; the table is printed."""
    with UpstreamMirrors(upstreams, tmp_path_factory.mktemp("mirrors")) as mirrors:
        hunks = [hunk for case in load_corpus() for hunk in _judged(case, mirrors)]
        print("\n  answer           found            hunk", *hunks, sep="\n")
        yield hunks


def _judged(case: Case, mirrors: UpstreamMirrors) -> Iterator[JudgedHunk]:
    mirror = mirrors.of(case.repository)
    old, new = MirrorVersion(mirror, case.start), MirrorVersion(mirror, case.to)
    history = MirrorHistory(mirror, case.start, case.to)
    names = MarkerNames(case.to_name, "the-patch")
    found = {h.number: h for h in port_patch(mirrors.patch(case), old.read, new, history, names).hunks}
    for answer in case.answers:
        yield JudgedHunk(case, answer, found[answer.hunk])


def test_nothing_is_called_exact_or_upstream_that_is_not(judged: list[JudgedHunk]) -> None:
    """These two need no look of anybody, so that one of them in the wrong is a change lost or misplaced."""
    wrong = [h for h in judged if h.found.state in NEVER_WRONG and h.found.state != h.answer.answer]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("held_out", [False, True])
def test_few_conflicts_are_such_that_a_person_would_not_think(
    judged: list[JudgedHunk], held_out: bool
) -> None:
    """Counted apart for the hunks that the judging was improved with, and for those that were held out."""
    needless = [h for h in judged if h.is_needless_conflict and h.case.is_held_out == held_out]
    assert len(needless) <= MOST_TRIVIAL_CONFLICTS, "\n".join(map(str, needless))
