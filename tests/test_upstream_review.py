"""Each upstream commit after a pin has a verdict of a review; `.ci/maintenance/upstream_commits` finds the commits."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from npu_rl.recipes.plan.plan import RULE_IDS
from tests.support import ROOT


def _program() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(
        "upstream_commits", str(ROOT / ".ci/maintenance/upstream_commits")
    )
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look their module up
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # no .ci/maintenance/upstream_commitsc
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


pytestmark = pytest.mark.nightly

program = _program()
REVIEWS = {review.name: review for review in program.reviews()}
REVIEWED = [name for name, review in REVIEWS.items() if not review.waits]
CATALOGUE = ROOT / "npu_rl/recipes/faults/catalogue"


def fault_of(verdict: str, reason: str, root: Path = ROOT) -> str | None:
    """Return what is wrong with a verdict, or None."""
    word, _, name = verdict.partition(" ")
    if not reason.strip():
        return "no reason"
    known = {
        "picked": not name,
        "irrelevant": not name,
        "open": not name,
        "patched": (root / f"patchsets/{name}.patch").is_file(),
        "rule": name in RULE_IDS,
        # The catalogue is checked where it is.
        "fault": bool(name) and (not CATALOGUE.is_dir() or (CATALOGUE / f"{name}.yaml").is_file()),
    }
    if word not in known:
        return f"unknown verdict {word!r}"
    return None if known[word] else f"unknown {word} {name!r}"


@pytest.mark.parametrize("name", REVIEWED)
def test_every_line_has_a_verdict_and_a_reason(name: str) -> None:
    lines = program.read_table(REVIEWS[name].table)
    assert lines
    faults = [f"{line.commit}: {fault}" for line in lines if (fault := fault_of(line.verdict, line.reason))]
    assert not faults, "\n".join(faults)
    assert len({line.commit for line in lines}) == len(lines)


@pytest.mark.parametrize(
    ("verdict", "reason", "fault"),
    [
        ("?", "", "no reason"),
        ("?", "later", "unknown verdict '?'"),
        ("irrelevant", " ", "no reason"),
        ("patched verl/55e3c5b/0099-nothing", "x", "unknown patched 'verl/55e3c5b/0099-nothing'"),
        ("patched verl/55e3c5b/0010-router-bias", "x", None),
        ("rule no-such-rule", "x", "unknown rule 'no-such-rule'"),
        ("rule mla-tensor-parallel", "x", None),
        ("fault", "x", "unknown fault ''"),
    ],
)
def test_a_line_without_a_verdict_fails(verdict: str, reason: str, fault: str | None) -> None:
    assert fault_of(verdict, reason) == fault


def test_what_the_reviews_named_has_a_verdict_for_each_other_manifest() -> None:
    assert not list(program.named_differences())
    for named, manifest, verdict, reason in program.read_named():
        assert fault_of(verdict, reason) is None, named
        assert (ROOT / f"manifests/{manifest}.yaml").is_file(), manifest


def test_each_pin_of_each_manifest_has_a_table_or_a_reason() -> None:
    # By manifest, as a verdict that holds for one need not hold for another with the same pin: in deepseek-r1-zero
    # there is no context parallelism, in verl-npu-plugin there is.
    listed = {(manifest, name) for name, review in REVIEWS.items() for manifest in review.manifests}
    not_reviewed = program.not_reviewed()
    assert not listed & not_reviewed.keys()
    assert listed | not_reviewed.keys() == program.pins()
    assert all(not_reviewed.values())
    tables = {path.stem for path in program.FOLDER.glob("*.tsv") if path != program.NAMED}
    assert tables == set(REVIEWED)


@pytest.mark.parametrize("name", REVIEWED)
def test_each_table_names_its_manifests(name: str) -> None:
    review = REVIEWS[name]
    heading = review.table.read_text(encoding="utf-8").splitlines()
    wanted = [f"# {line}" for line in program._heading(review)]
    assert heading[: len(wanted)] == wanted


def test_imports_are_followed_into_functions_relative_names_and_strings() -> None:
    sources = program.Sources()
    sources.packages.add("a")
    sources.modules["a"] = ("x", "a/__init__.py", b"def f():\n    from .b import c\n")
    sources.modules["a.b"] = ("x", "a/b.py", b'WORKER = "a.worker:Worker"\nimport os.path\n')
    assert {"a.b", "a.b.c"} <= set(program._imports(sources, "a"))
    assert {"a.worker", "os.path"} <= set(program._imports(sources, "a.b"))


@pytest.mark.upstreams
@pytest.mark.parametrize("name", REVIEWED)
def test_the_table_lists_exactly_the_commits_of_the_range(upstreams: Path, name: str) -> None:
    wanted = [(line.commit, line.subject) for line in program.list_commits(REVIEWS[name], upstreams)]
    assert [(line.commit, line.subject) for line in program.read_table(REVIEWS[name].table)] == wanted
