"""The corpus of real hunks: read strictly, large enough, and about patches that fit where they come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from npu_rl.stack.hunks.hunk_match import apply_exact
from tests.port.corpus import ANSWERS, Case, CorpusError, load_corpus
from tests.port.corpus_mirrors import UpstreamMirrors

CASES = load_corpus()
HUNKS = [(case, answer) for case in CASES for answer in case.answers]


def test_the_corpus_is_large_and_has_every_answer() -> None:
    """More than forty hunks, more than twenty of other people's patches, and at least three of each answer."""
    assert len(HUNKS) >= 44
    assert sum(case.is_foreign for case, _ in HUNKS) >= 22
    counts = Counter(answer.answer for _, answer in HUNKS)
    assert all(counts[answer] >= 3 for answer in ANSWERS), counts
    assert sum(a.trivial for _, a in HUNKS if a.answer in ("merged", "moved")) >= 12


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("answer: exact", "answer: fits", "unknown answer 'fits'"),
        ("hunk: 1", "hunk: first", "hunk is not a int"),
        ("strip: 1", "strip: 1\n    offset: 2", "patch: the fields are repository, commit, path, strip"),
        ("from: ", "from: v", "from is not a full commit id"),
        ("why: A new file", "commit: abc\n      why: A new file", "the fields are path, hunk"),
        ("hunk: 2", "hunk: 1", "each hunk needs one answer"),
        ("https://github.com/verl-project/verl.git", "verl", "repository is not https"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (Path(__file__).with_name("corpus") / "verl.yaml").read_text()
    assert old in text
    (tmp_path / "verl.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(CorpusError, match=message):
        load_corpus(tmp_path)


@pytest.fixture(scope="module")
def mirrors(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpstreamMirrors]:
    with UpstreamMirrors(upstreams, tmp_path_factory.mktemp("mirrors")) as opened:
        yield opened


@pytest.mark.upstreams
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.where)
def test_a_patch_fits_where_it_comes_from(case: Case, mirrors: UpstreamMirrors) -> None:
    """Every hunk at its own line; and each answer is about the hunk of that number and path."""
    patch, mirror = mirrors.patch(case), mirrors.of(case.repository)
    for file in patch.files:
        apply_exact(mirror.read(case.start, file.path), file, name=case.where)
    paths = {hunk.number: file.path for file in patch.files for hunk in file.hunks}
    assert all(paths.get(answer.hunk) == answer.path for answer in case.answers), paths


@pytest.mark.upstreams
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.where)
def test_what_an_answer_names_is_upstream(case: Case, mirrors: UpstreamMirrors) -> None:
    """A commit is part of the new version, and a place is a file of it."""
    mirror = mirrors.of(case.repository)
    for answer in case.answers:
        if answer.commit is not None:
            base = mirror.run("merge-base", answer.commit, case.to).decode().strip()
            assert base == answer.commit
        if answer.place is not None:
            assert mirror.read(case.to, answer.place) is not None
