from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patchsets import flagship_tree

REQUIRED = "NPU_RL_REQUIRE_PACKAGES"
"""1: a test that skips for want of a package fails. So no patch stays unproven because an extra lacks one."""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[Any]:
    """Fail modules whose first lines skip them."""
    report = yield
    _require_packages(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    """Fail tests that skip."""
    report = yield
    _require_packages(report)
    return report


def _require_packages(report: Any) -> None:
    # pytest.importorskip's words; a reason of a test's own has to name the module in the same way
    if os.environ.get(REQUIRED) == "1" and report.skipped and "could not import" in str(report.longrepr):
        report.outcome = "failed"
        report.longrepr = f"{REQUIRED}=1: a package is missing: {report.longrepr}"


@pytest.fixture(scope="module")
def patched_tree(
    request: pytest.FixtureRequest, upstreams: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The module's COMPONENTS with every patch, of its MANIFEST or else the flagship's."""
    manifest = getattr(request.module, "MANIFEST", flagship_tree.MANIFEST)
    folder = tmp_path_factory.mktemp("patched") / "code"
    return flagship_tree.tree(upstreams, folder, request.module.COMPONENTS, manifest=manifest)
