"""The committed list of imports that fail can be written, read and compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.common.bundled import data_root
from npu_rl.common.errors import NpuRlError
from npu_rl.common.python_roots import REHEARSAL
from npu_rl.rehearsal.level_imports import ImportFailure, ImportReport, compare, read_expected

NAMES = st.from_regex(r"[a-z_]+(\.[a-z_]+){0,3}", fullmatch=True)
CAUSES = st.one_of(
    NAMES.map("needs {}".format),
    st.text(min_size=1).filter(str.isprintable),
    st.sampled_from(["hung", "yes", "1", "~"]),
)


def dump_expected(report: ImportReport) -> str:
    """The list of a report as YAML: causes sorted, modules sorted. Comments are the caller's."""
    import yaml

    causes = {cause: list(modules) for cause, modules in report.causes.items()}
    return yaml.safe_dump(causes, sort_keys=True, width=1000, allow_unicode=True, default_flow_style=False)


def report_of(failures: dict[str, str], modules: int = 100) -> ImportReport:
    listed = (ImportFailure(module, cause) for module, cause in sorted(failures.items()))
    return ImportReport(("p",), modules, tuple(listed), 1.0)


@pytest.mark.second
@given(st.dictionaries(NAMES, CAUSES, max_size=8))
def test_a_written_list_reads_back_as_it_was(failures: dict[str, str]) -> None:
    report = report_of(failures)
    assert read_expected(dump_expected(report), "list") == report.causes


def test_a_written_list_is_sorted() -> None:
    text = dump_expected(report_of({"p.b": "needs x", "p.a": "needs x", "p.c": "hung"}))
    assert text == "hung:\n- p.c\nneeds x:\n- p.a\n- p.b\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "is a mapping"),
        ("a: [", "can't be read"),
        ("needs x: a.b", "must be a list of names"),
        ("needs x: [1]", "must be a list of names"),
        ("needs x: [a]\nneeds y: [a]", "a is listed under two causes"),
    ],
)
def test_a_bad_list_is_an_error(text: str, message: str) -> None:
    with pytest.raises(NpuRlError, match=message) as caught:
        read_expected(text, "list.yaml")
    assert caught.value.where == "list.yaml"


def test_an_empty_list_expects_nothing() -> None:
    assert read_expected("# nothing\n", "list") == {}


EXPECTED = {"needs x": ("p.a", "p.b"), "needs y": ("p.c",), "needs z": ("elsewhere.q",)}


def test_what_fails_as_expected_is_well() -> None:
    report = compare(
        report_of({"p.a": "needs x", "p.b": "needs x", "p.c": "needs y"}), EXPECTED, ["p.a", "p.b", "p.c"]
    )
    assert report.ok
    assert not (report.newly_failing or report.no_longer_failing or report.changed)


def test_what_fails_newly_is_a_failure() -> None:
    report = compare(
        report_of({"p.a": "needs x", "p.b": "needs x", "p.d": "needs w"}), EXPECTED, ["p.c", "p.d"]
    )
    assert not report.ok
    assert [failure.module for failure in report.newly_failing] == ["p.d"]
    assert [(change.module, change.cause) for change in report.no_longer_failing] == [("p.c", "imports")]
    assert "newly failing: p.d: needs w" in report.lines()
    assert "no longer failing: p.c imports (was: needs y)" in report.lines()


def test_the_list_is_also_of_modules_that_a_step_executes() -> None:
    """Of other packages than the patched ones: of those only a fault is a failure, if it is not listed."""
    failing = report_of({"other.a": "E: wrong", "other.b": "needs x"})
    assert compare(failing, {"E: wrong": ("other.a", "other.q")}, ["other.a", "other.b"]).ok
    assert [one.module for one in compare(failing, {}, ["other.a", "other.b"]).newly_failing] == ["other.a"]


def test_an_import_that_works_or_went_away_is_told_and_well() -> None:
    report = compare(report_of({"p.a": "needs x"}), EXPECTED, ["p.a", "p.b"])
    assert report.ok
    assert [(change.module, change.cause) for change in report.no_longer_failing] == [
        ("p.b", "imports"),
        ("p.c", "gone"),
    ]


def test_another_missing_package_is_told_and_a_fault_is_a_failure() -> None:
    told = compare(report_of({"p.a": "needs w"}), {"needs x": ["p.a"]}, ["p.a"])
    assert told.ok
    assert [(change.expected, change.cause) for change in told.changed] == [("needs x", "needs w")]
    assert not compare(report_of({"p.a": "the tree lacks p.q"}), {"needs x": ["p.a"]}, ["p.a"]).ok
    unsupported = "NoCpuVersion: torch.npu.NPUGraph has no CPU version among npu-rl's stand-ins"
    assert compare(report_of({"p.a": unsupported}), {"needs x": ["p.a"]}, ["p.a"]).ok, "with x installed"


def test_without_a_list_only_faults_are_failures() -> None:
    assert report_of({"p.a": "needs x"}).ok
    assert not report_of({"p.a": "signal 11"}).ok


@pytest.mark.parametrize(
    "place", sorted((data_root() / "manifests").glob("*.imports.yaml")), ids=lambda p: p.name
)
def test_a_committed_list_names_modules(place: Path) -> None:
    expected = read_expected(place.read_text(encoding="utf-8"), str(place))
    assert expected or place.name in WHOLE
    for modules in expected.values():
        assert all(module.split(".")[0] in PACKAGES for module in modules), modules


WHOLE = {"mindspeed-rl-grpo.imports.yaml"}  # every module of its trainer imports
PACKAGES = {
    "verl",
    "vllm",
    "vllm_ascend",
    "megatron",
    "mbridge",
    "mindspeed",
    "mindspeed_llm",
    "npu_rl_runtime",
    "transformers",
    "verl_patch",
    "verl_patches",
}


@pytest.mark.parametrize(
    "place", sorted((data_root() / "manifests").glob("*.imports.yaml")), ids=lambda p: p.name
)
def test_the_lists_quote_the_stand_ins_as_they_speak_now(place: Path) -> None:
    """A reworded refusal made the flagship's rehearsal of imports fail, since the lists had its old words."""
    text = (REHEARSAL / "npu_rl_standins/unsupported.py").read_text(encoding="utf-8")
    refusal = "has no CPU version among npu-rl's stand-ins: a rehearsal can't show what this call does."
    assert refusal in text
    listed = read_expected(place.read_text(encoding="utf-8"), str(place))
    quoted = [cause for cause in listed if cause.startswith("NoCpuVersion")]
    assert [cause for cause in quoted if refusal not in cause] == []
