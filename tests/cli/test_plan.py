"""`npu-rl plan` as a person and as a program see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.recipes.plan.helpers import RECIPE
from tests.support import clean_env, run_cli


def test_a_recipe_that_fits(tmp_path: Path) -> None:
    shown = run_cli(["plan", RECIPE, "--storage-gbs", "10"], clean_env(tmp_path), tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "  training: 256 dies = TP1 x CP1 x DP32 x PP8; experts ETP1 x EP32 x EDP1\n" in shown.stdout
    assert "\nMemory of a host, offloaded and swapped: 852.0 GB a node\n" in shown.stdout
    assert "\n  from storage: 4 min to 8 min at 10 GB/s\n" in shown.stdout
    assert "Tokens of a step: 33,554,432 at most (8,192 sequences, 262,144 an engine)" in shown.stdout
    assert "KV cache bf16, 70272 bytes a token, for 64 sequences of 4096 tokens" in shown.stdout
    assert shown.stdout.endswith("\n256-dies fits.\n")
    rules = shown.stdout.index("\nRules that hold\n")
    assert max(map(len, shown.stdout[:rules].splitlines())) <= 100


def test_one_that_does_not_fit_says_what_to_change(tmp_path: Path) -> None:
    shown = run_cli(["plan", RECIPE, "--die-memory-gb", "32"], clean_env(tmp_path), tmp_path)
    assert shown.returncode == 1
    (line,) = [line for line in shown.stdout.splitlines() if line.endswith("[memory-generate]")]
    assert line.startswith("error: ") and "stage 0: the engine's weights 23.3 GB" in line
    assert "; fix: lower rollout.max_sequences" in line
    end = shown.stdout.splitlines()[-1]
    assert end.startswith("256-dies can't be run as it is: ") and "memory-update, memory-weight-sync" in end


def test_json(tmp_path: Path) -> None:
    words = ["plan", RECIPE, "--json", "--storage-gbs", "10", "--host-memory-gb", "800"]
    shown = run_cli(words, clean_env(tmp_path), tmp_path)
    assert shown.returncode == 1
    made = json.loads(shown.stdout)
    assert made["ok"] is False
    assert [rule["id"] for rule in made["rules"] if rule["refuses"]] == ["memory-host"]
    assert [(one["rule"], one["severity"]) for one in made["findings"]] == [("memory-host", "error")]
    assert made["memory"]["stages"][1]["weights"] == 9_365_094_400
    assert made["memory"]["rollout"]["bytes"]["the engine's weights"] == 23_257_200_640
    assert made["loading"]["seconds"][0] == pytest.approx(268.4, abs=0.1)
    assert made["disk"]["bf16"] == 2 * 671_026_404_352 + 4 * 58 * 256
    assert made["tokens"]["longest"] == 33_554_432


def test_sizes_that_do_not_fit_are_not_drawn(tmp_path: Path) -> None:
    shown = run_cli(["plan", RECIPE, "actor.parallel.pipeline=7"], clean_env(tmp_path), tmp_path)
    assert shown.returncode == 1
    assert "Layout" not in shown.stdout
    assert "256 ranks can't be split evenly 7 ways" in shown.stdout


@pytest.mark.parametrize("option", ["--die-memory-gb", "--host-memory-gb", "--storage-gbs"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_sizes_that_are_none(tmp_path: Path, option: str, value: str) -> None:
    shown = run_cli(["plan", RECIPE, f"{option}={value}"], clean_env(tmp_path), tmp_path)
    assert shown.returncode == 2
    assert f"{option} needs a number above 0" in shown.stderr


def test_a_laptop_recipe(tmp_path: Path) -> None:
    shown = run_cli(["plan", "quickstart"], clean_env(tmp_path), tmp_path)
    assert shown.returncode == 0
    assert "training: 1 die, fsdp" in shown.stdout
    assert shown.stdout.endswith("quickstart fits.\n")
