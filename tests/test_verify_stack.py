"""`.ci/maintenance/verify_stack` runs the real commands, records each when it has ended, and goes on where it was."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, index_env, ok, run_program

pytestmark = pytest.mark.second

PARTS = (".ci", "npu_rl", "manifests", "patchsets", "recipes")
STEPS = ["lock --check", "setup", "verify --deep", "summary"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return checkout_in(tmp_path)


def checkout_in(folder: Path) -> Path:
    for part in PARTS:
        ignored = shutil.ignore_patterns("*.verified.json")  # compiled modules save a second a command
        shutil.copytree(ROOT / part, folder / "checkout" / part, ignore=ignored)
    return folder / "checkout"


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory, quickstart_workspace: Path) -> dict[str, str]:
    """An environment in which the quickstart can be set up: an index has delivered it into this store."""
    env = index_env(tmp_path_factory.mktemp("machine"), quickstart_workspace.parent / "store")
    return {**env, "PYTHONPATH": ""}


def verify_stack(checkout: Path, env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        [sys.executable, checkout / ".ci/maintenance/verify_stack", *words],
        env=env,
        cwd=checkout.parent,
        timeout=300,
    )


def listed(checkout: Path, env: dict[str, str]) -> list[str]:
    """The lines of `manifests list` below the one of quickstart."""
    done = ok(
        run_program(
            [sys.executable, "-m", "npu_rl", "manifests", "list"],
            env={**env, "PYTHONPATH": str(checkout)},
            cwd=checkout,
        )
    )
    lines = done.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("quickstart "))
    return [line.strip() for line in takewhile(lambda line: line.startswith(" "), lines[at + 1 :])]


def record_of(checkout: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((checkout / "manifests/quickstart.verified.json").read_text())
    return found


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory, env: dict[str, str]) -> Path:
    """A checkout in which the quickstart was verified, for all tests that go on from there."""
    pytest.importorskip("torch")  # the dry run needs the packages of the extra `rehearsal`
    checkout = checkout_in(tmp_path_factory.mktemp("verified"))
    assert listed(checkout, env) == ["not verified"]
    ok(verify_stack(checkout, env, "quickstart"))
    return checkout


@pytest.mark.rehearsal
def test_each_step_is_run_once_and_shown(verified: Path, env: dict[str, str]) -> None:
    record = record_of(verified)
    assert [(step["name"], step["outcome"]) for step in record["steps"]] == [(one, "passed") for one in STEPS]
    steps = {step["name"]: step for step in record["recipes"]["quickstart"]["steps"]}
    assert [(name, step["outcome"]) for name, step in steps.items()] == [
        (one, "passed") for one in ("recipes check", "plan", "dry run")
    ]
    assert str(verified.parent) not in json.dumps(record)
    of_manifest, of_recipe = listed(verified, env)
    assert of_manifest == f"verified {record['steps'][0]['date']}: {', '.join(STEPS)}"
    assert "recipes check, plan, dry run" in of_recipe

    second = verify_stack(verified, env, "quickstart", "--recipe", "quickstart").stdout
    run_again = [line for line in second.splitlines() if ": npu-rl " in line]
    assert [line.partition(": npu-rl ")[0] for line in run_again] == [
        "quickstart: setup",  # into a new folder: what comes after it needs a workspace
    ]


def title_changed(checkout: Path) -> None:
    manifest = checkout / "manifests/quickstart.yaml"
    manifest.write_text(manifest.read_text().replace("title: ", "title: Another. ", 1))


def test_a_failure_is_recorded_and_stops_the_rest(
    checkout: Path, env: dict[str, str], tmp_path: Path
) -> None:
    title_changed(checkout)
    done = verify_stack(checkout, env, "quickstart")
    assert done.returncode == 1
    record = record_of(checkout)
    (step,) = record["steps"]
    assert (step["name"], step["outcome"]) == ("lock --check", "failed") and record.get("recipes", {}) == {}
    assert step["reason"] and str(tmp_path) not in step["reason"]
    assert listed(checkout, env)[0].endswith(f": failed lock --check ({step['reason']})")
