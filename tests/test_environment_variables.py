"""The registry of npu-rl's environment variables holds them all, and the page of them is what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from npu_rl.common.bundled import data_root
from npu_rl.common.environment_variables import VARIABLES
from npu_rl.recipes.trainer_code.adaptation_switches import known_switches
from npu_rl.stack.sources.git_remote import Network
from npu_rl.stack.sources.url_rewriting import Rewrites
from tests.support import ROOT

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


def test_the_defaults_in_it_are_those_that_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NPU_RL_STALL", "NPU_RL_RETRIES", "NPU_RL_BACKOFF"):
        monkeypatch.delenv(name, raising=False)
    network = Network.from_environment(Rewrites())
    shown = {v.name: v.default for v in VARIABLES}
    assert network.stall == float(shown["NPU_RL_STALL"]) == Network().stall
    assert network.retries == int(shown["NPU_RL_RETRIES"]) == Network().retries
    assert network.backoff == float(shown["NPU_RL_BACKOFF"]) == Network().backoff


def test_the_page_names_each() -> None:
    page = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([A-Z0-9_]+)` \|", page, re.MULTILINE)) == NAMES | _switches()
    assert data_root() == ROOT
