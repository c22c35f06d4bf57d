"""Every bundled patch, left out: one of the tests that its header names fails, and not for want of a name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from npu_rl.common.bundled import data_root
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_header import parse_header
from npu_rl.stack.patches.series import PatchSource, read_patchset
from tests.patchsets.flagship_tree import WITHOUT
from tests.support import QUICKSTART, ROOT

pytest.importorskip("torch")  # most of them need it; the lot runs where it is
pytestmark = pytest.mark.rehearsal

FROM_PYPI = {"verl/0.5.0", "vllm/0.9.1"}
# What an unpatched tree could die of without having been looked at.
NOT_LOOKED_AT = re.compile(
    r"\b(ImportError|ModuleNotFoundError|AttributeError|SyntaxError|fixture '\w+' not found)\b"
)


def bundled() -> list[tuple[str, PatchSource]]:
    folders = sorted(path for path in (data_root() / "patchsets").glob("*/*") if path.is_dir())
    return [(f"{f.parent.name}/{f.name}", patch) for f in folders for patch in read_patchset(f)]


@pytest.mark.parametrize(
    ("patchset", "patch"),
    [
        pytest.param(
            patchset,
            patch,
            marks=pytest.mark.pypi if patchset in FROM_PYPI else pytest.mark.upstreams,
            id=f"{patchset}/{patch.name}",
        )
        for patchset, patch in bundled()
    ],
)
def test_without_it_a_test_of_its_own_fails(
    patchset: str, patch: PatchSource, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    given = {WITHOUT: patch.name}
    if patchset not in FROM_PYPI:
        request.getfixturevalue("upstreams")
    elif patchset.startswith("vllm/"):  # its tests look at the quickstart's tree: set up once, not once more
        given[QUICKSTART] = str(request.getfixturevalue("quickstart_workspace"))
    named = header_tests(patch)
    found = run(named, tmp_path, **given)
    if found and all(outcome == "skipped" for outcome, _ in found):
        pytest.skip(f"its tests can't run here: {found[0][1]}")
    failures = [text for outcome, text in found if outcome == "failure"]
    assert failures, f"{', '.join(named)} pass without it: {found}"
    observed = [text for text in failures if not NOT_LOOKED_AT.search(text)]
    assert observed, f"without the patch nothing was looked at:\n{failures[0][-3000:]}"


def test_every_test_named_is_one() -> None:
    """With its parameters: pytest runs nothing at all where one id of a header has no match ("[newest]" for
    "[newest-mini]"), and only the third tier would notice."""
    named = sorted({test for _, patch in bundled() for test in header_tests(patch)})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "", "--collect-only", "-n0", "-p", "no:cacheprovider", *named],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    missing = re.findall(r"^ERROR: not found: (\S+)\n\(no match in any of", done.stdout + done.stderr, re.M)
    assert not missing, missing


def header_tests(patch: PatchSource) -> tuple[str, ...]:
    return parse_header(parse_patch(patch.data, name=patch.name).header).tests


def run(tests: tuple[str, ...], folder: Path, **environment: str) -> list[tuple[str, str]]:
    """(outcome, text) of each test, up to the first that fails: passed, failure, error or skipped."""
    report = folder / "report.xml"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "", "-x", "-n0", "-p", "no:cacheprovider",
         f"--junitxml={report}", *tests],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    nothing_left = "found no collectors" in done.stderr + done.stdout and " skipped" in done.stdout
    if done.returncode == 4 and nothing_left:  # a module that skips as a whole
        return [("skipped", "a package they need is not installed")]
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    outcomes = []
    for case in ElementTree.parse(report).iter("testcase"):
        inner = next(iter(case), None)
        kind = inner.tag if inner is not None and inner.tag in ("failure", "error", "skipped") else "passed"
        outcomes.append((kind, "" if inner is None else f"{inner.get('message', '')}\n{inner.text or ''}"))
    return outcomes
