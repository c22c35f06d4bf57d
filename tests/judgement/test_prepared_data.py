"""What a judgement says of data that `data prepare` made: by its report, without reading a row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from npu_rl.recipes.judgement.prepared_data import prepared_data_findings
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.trainer_code.overlong_prompts import CUT_LEFT
from tests.code_trees import lay

OURS = ("reward.function=npu_rl_runtime/rewards/deepscaler.py:compute_scores", "reward.arguments=~")
VERL = ("reward.function=~", "reward.arguments=~")
SCORES = {
    "verl/utils/reward_score/__init__.py": 'def score(data_source):\n    return data_source == "openai/gsm8k"\n'
}


def prepared(folder: Path, **other: Any) -> Path:
    folder.mkdir(exist_ok=True)
    data = b"PAR1" + bytes(20) + b"PAR1"
    for name in ("train.parquet", "test.parquet"):
        (folder / name).write_bytes(data)
    report = {
        "dataset": "deepscaler",
        "data_source": "deepscaler",
        "asks_for": r"\boxed{}",
        "files": {name: {"bytes": len(data)} for name in ("train.parquet", "test.parquet")},
        "lengths": None,
        **other,
    }
    (folder / "prepared.json").write_text(json.dumps(report))
    return folder


def found(folder: Path, *overrides: str, code: Path | None = None) -> list[tuple[str, str]]:
    recipe = load_recipe(
        "quickstart",
        [
            "data.make=~",
            f"data.train=[{folder}/train.parquet]",
            f"data.test=[{folder}/test.parquet]",
            *overrides,
        ],
    )
    findings = prepared_data_findings(recipe, code)
    assert all(one.where.startswith("command line") for one in findings)
    return [(one.severity.value, one.rule) for one in findings]


def test_data_that_fits(tmp_path: Path) -> None:
    assert found(prepared(tmp_path / "d"), *OURS) == []


def test_files_of_other_machines_and_of_others_are_left_alone(tmp_path: Path) -> None:
    assert found(tmp_path / "none", *OURS) == []
    folder = prepared(tmp_path / "d", data_source="x")
    (folder / "prepared.json").unlink()
    assert found(folder, *OURS) == []


def test_a_report_of_other_files_says_nothing(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "d", data_source="openai/gsm8k", dataset="gsm8k")
    for name in ("train.parquet", "test.parquet"):
        (folder / name).write_bytes(b"PAR1" + bytes(21) + b"PAR1")
    assert found(folder, *OURS) == []


def test_half_a_file(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "d")
    (folder / "train.parquet").write_bytes(b"PAR1" + bytes(20))
    (folder / "test.parquet").write_bytes(b"")
    assert found(folder, *OURS) == [("error", "data-parquet")] * 2


def test_a_data_source_that_the_reward_does_not_score(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "d", data_source="openai/gsm8k", dataset="gsm8k", asks_for="####")
    assert found(folder, *OURS) == [("error", "data-source")] * 2
    assert found(folder, OURS[0], "reward.arguments={any_source: true}") == []
    code = lay(tmp_path / "code", SCORES)
    assert found(folder, *VERL, code=code) == []
    assert found(folder, *VERL) == [], "no tree, no judgement"
    other = prepared(tmp_path / "e")
    assert found(other, *VERL, code=code) == [("error", "data-source")] * 2
    (code / "verl/utils/reward_score/__init__.py").write_text("if deepscaler.scores(data_source): ...\n")
    assert found(other, *VERL, code=code) == []
    assert found(other, *VERL, "adaptations.deepscaler-reward=false", code=code) != []
    assert found(folder, "reward.function=/mine.py:score") == [], "that takes calling it"


def test_prompts_that_ask_for_another_form(tmp_path: Path) -> None:
    assert found(prepared(tmp_path / "d", asks_for="####"), *OURS) == [("advice", "data-template")] * 2
    assert found(prepared(tmp_path / "d", asks_for=""), *OURS) == [("advice", "data-template")] * 2
    assert found(prepared(tmp_path / "d", asks_for=None), *OURS) == []


def test_prompts_that_are_too_long(tmp_path: Path) -> None:
    lengths = {"files": {"train.parquet": {"longest": 2000}, "test.parquet": {"longest": 10}}}
    folder = prepared(tmp_path / "d", lengths=lengths)
    assert found(folder, *OURS, "data.prompt_length=1024") == [("error", "data-prompt-length")]
    assert found(folder, *OURS, "data.prompt_length=2000") == []
    assert found(folder, *OURS, "data.prompt_length=1024", "data.filter_overlong=true") == []
    assert found(folder, *OURS, "data.prompt_length=1024", "data.overlong=left") == []
    code = lay(tmp_path / "code", {CUT_LEFT.file: CUT_LEFT.text})
    assert found(folder, *OURS, "data.prompt_length=1024", code=code) == [("advice", "data-prompt-length")]
