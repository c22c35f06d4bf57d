"""`npu-rl plan` as a person and as a program see it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.in_process import run_here
from tests.plan.helpers import RECIPE
from tests.support import clean_env, ok


def test_flagship_recipe_fits_and_shows_its_layout(tmp_path: Path) -> None:
    words = ["plan", RECIPE, "--storage-gbs", "10"]
    short = run_here(words, clean_env(tmp_path), tmp_path).stdout
    assert short.startswith("fits: at most 53.8 of 64.0 GB on a die (generate, stage 0), 10.2 GB to spare\n")
    assert "\n  generate (stage 0)             51.2-53.8 GB, 2.6 GB estimated\n" in short
    assert "Memory of a host" not in short and "\n  from storage: 4 min to 8 min at 10 GB/s\n" in short
    shown = run_here([*words, "--all"], clean_env(tmp_path), tmp_path)
    assert (shown.returncode, shown.stderr) == (0, f"Next: npu-rl train {RECIPE} --dry-run\n")
    assert "  training: 256 dies = TP1 x CP1 x DP32 x PP8; experts ETP1 x EP32 x EDP1\n" in shown.stdout
    assert "\nMemory of a host: 1140.1 GB a node; not judged without --host-memory-gb\n" in shown.stdout
    assert "\n  from storage: 4 min to 8 min at 10 GB/s\n" in shown.stdout
    assert "Tokens of a step: 33,554,432 at most (8,192 sequences, 262,144 an engine)" in shown.stdout
    assert "KV cache: 70272 bytes a token, in blocks of 128 tokens" in shown.stdout
    assert re.search(r"\nRules: \d\d hold, \d+ don't apply here; --all prints them", short)
    assert max(map(len, short.splitlines())) <= 100


def test_recipe_that_does_not_fit_names_the_rules_it_breaks(tmp_path: Path) -> None:
    measured = ["plan", "today-gspo-qwen3-30b", "cluster.die_memory_gb=24"]
    shown = run_here(measured, clean_env(tmp_path), tmp_path)
    assert shown.returncode == 1 and shown.stdout.startswith("does not fit: 72.1 of 24.0 GB on a die")
    lines = shown.stdout.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("error[memory-update] ")]
    assert "stage 0: actor's weights 8.8 GB" in lines[at] and lines[at + 1].startswith("  at ")
    assert lines[at + 2].startswith("  fix: the largest part is optimizer's states, 22.9 GB")
    assert lines[-1] == "today-gspo-qwen3-30b can't be run as it is: 1 error (memory-update)"


def test_json_has_the_figures_of_the_plan(tmp_path: Path) -> None:
    words = ["plan", RECIPE, "--json", "--storage-gbs", "10", "--host-memory-gb", "800"]
    shown = run_here(words, clean_env(tmp_path), tmp_path)
    made = json.loads(ok(shown).stdout)
    assert made["ok"] is True and made["answer"].startswith("fits: at most 53.8 of 64.0 GB")
    assert [(one["rule"], one["severity"]) for one in made["findings"]] == [("memory-host", "advice")]
    assert made["memory"]["stages"][1]["weights"] == 9_365_094_400
    assert made["memory"]["engine"]["own"]["engine-weights"] == 23_257_200_640
    assert made["loading_seconds"][0] == pytest.approx(268.4, abs=0.1)
    assert made["disk"]["bf16"] == 2 * 671_026_404_352 + 4 * 58 * 256
    assert made["tokens"]["longest"] == 33_554_432
