"""The registry of npu-rl's environment variables holds them all, and the page of them is what it says."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from npu_rl.common.bundled import data_root
from npu_rl.common.environment_variables import NPU_RL, TESTS, VARIABLES, YOU, reserved
from npu_rl.recipes.trainer_code.adaptation_switches import known_switches
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.url_rewriting import Rewrites
from tests.support import ROOT, ok, run_program

NAMES = {variable.name for variable in VARIABLES}
# Names that tests make up.
MADE_UP = {
    "NPU_RL_FORGED",
    "NPU_RL_NOBODY",
    "NPU_RL_X",
    "NPU_RL_SURELY_UNSET",
    "NPU_RL_KV_CACH_REUSE",
    "NPU_RL_STOER",
}
_NAME = re.compile(r"\bNPU_RL_[A-Z][A-Z0-9_]*[A-Z0-9]\b")


def _switches() -> set[str]:
    return {"NPU_RL_" + slug.upper().replace("-", "_") for slug in known_switches(None)}


def _named(*places: str) -> Iterator[tuple[str, str]]:
    for place in places:
        files = [ROOT / place] if (ROOT / place).is_file() else sorted((ROOT / place).rglob("*"))
        for path in files:
            if path.is_file() and path.suffix not in (".pyc", ".gz"):
                for name in _NAME.findall(path.read_text(encoding="utf-8", errors="replace")):
                    yield name, str(path.relative_to(ROOT))


@pytest.mark.second
def test_every_name_in_the_package_is_in_it() -> None:
    found = dict(_named("npu_rl"))
    assert len(found) > 25
    assert {name: where for name, where in found.items() if name not in NAMES | _switches()} == {}


@pytest.mark.second
def test_every_name_in_tests_and_documents_is_in_it() -> None:
    found = dict(_named("tests", ".ci", "README.md", "docs", "recipes", "manifests"))
    left = {
        n: w for n, w in found.items() if n not in NAMES | _switches() | MADE_UP and n not in _constants()
    }
    assert left == {}


def _constants() -> set[str]:
    return {"NPU_RL_"}  # what a name begins with


def test_every_one_in_it_is_used() -> None:
    registry = ROOT / "npu_rl" / "common/environment_variables.py"
    files = [path for place in ("npu_rl", "tests", "benchmarks") for path in (ROOT / place).rglob("*")]
    text = "\n".join(
        path.read_text(encoding="utf-8", errors="replace")
        for path in files
        if path.is_file() and path.suffix != ".pyc" and path not in (registry, Path(__file__))
    )
    for name in NAMES - {"_NPU_RL_COMPLETE"}:  # typer's
        constant = name.removeprefix("NPU_RL_")
        assert name in text or re.search(rf"\b{constant}(\.name\b|\))", text), name


def test_no_name_stands_twice() -> None:
    assert len(NAMES) == len(VARIABLES)
    for variable in VARIABLES:
        assert variable.meaning.endswith(".") and variable.default and variable.set_by


def test_a_recipe_sets_none_that_a_shell_or_npu_rl_does() -> None:
    assert {v.name for v in VARIABLES if v.set_by in (YOU, NPU_RL) and not v.instead} == {
        *("NPU_RL_QUOTED", "NPU_RL_GIT_USERNAME", "NPU_RL_GIT_PASSWORD"),
    }
    assert all("{name}" in text or text == "set seed instead" for text in reserved().values())
    assert not any(v.instead for v in VARIABLES if v.set_by == TESTS)


def test_the_defaults_in_it_are_those_that_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NPU_RL_STALL", "NPU_RL_RETRIES", "NPU_RL_BACKOFF"):
        monkeypatch.delenv(name, raising=False)
    network = Network.from_environment(Rewrites())
    shown = {v.name: v.default for v in VARIABLES}
    assert network.stall == float(shown["NPU_RL_STALL"]) == Network().stall
    assert network.retries == int(shown["NPU_RL_RETRIES"]) == Network().retries
    assert network.backoff == float(shown["NPU_RL_BACKOFF"]) == Network().backoff


def test_the_page_is_current() -> None:
    ok(run_program([sys.executable, ROOT / ".ci/regenerate", "--check", "docs/environment.md"]))
    page = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([A-Z0-9_]+)` \|", page, re.MULTILINE)) == NAMES | _switches()
    assert data_root() == ROOT
