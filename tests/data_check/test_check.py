"""`npu-rl data check`: prepared files against a recipe, with the recipe's own reward from a real tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.data.data_check.check_data import Checked, data_findings, unjudged
from npu_rl.data.data_check.gather import gather
from npu_rl.data.data_check.reward_trial import try_reward
from npu_rl.data.datasets.trainer_files import TrainerFile, read_trainer_file
from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.datasets.test_prepare import cli, deepscaler, prepare, write
from tests.support import run_cli

pq = pytest.importorskip("pyarrow.parquet")
pa = pytest.importorskip("pyarrow")

DEEPSCALER = (
    "reward.function=npu_rl_runtime/rewards/deepscaler.py:compute_scores",
    "reward.manager=batch",
    "reward.arguments=~",
)
Found = dict[str, tuple[str, str]]


def findings(checked: Checked, *overrides: str) -> Found:
    """Severity and message of each rule's last finding."""
    found = data_findings(load_recipe("quickstart", overrides), checked)
    return {one.rule.removeprefix("data-"): (one.severity.value, one.message) for one in found}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare("deepscaler", write(folder / "d.json", deepscaler(200)), folder / "out", "--template", "r1-zero")
    return folder / "out"


@pytest.mark.second
def test_prepared_files_fit_the_reward(prepared: Path, quickstart_workspace: Path) -> None:
    done = cli(
        "check", prepared, "--recipe", "quickstart", "--workspace", quickstart_workspace, "--json", "data.make=~",
        "--python", sys.executable, "data.train=[/x/train.parquet]", "data.test=[/x/test.parquet]",
        "data.batch=16", *DEEPSCALER,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["ok"] and report["findings"] == []
    scores = report["trials"][0]["scores"]
    assert scores["right-boxed"] == 1.0
    assert {scores[name] for name in ("right-plain", "right-answer", "wrong-boxed", "empty")} == {0.0}
    assert sum(file["rows"] for file in (*report["train"], *report["test"])) == 200
    assert report["train"][0]["sources"] == {"deepscaler": report["train"][0]["rows"]}
    assert list(report["unchecked"]) == ["lengths"]
    proven = run_cli(["verify", "--deep", "--workspace", quickstart_workspace], os.environ)
    assert proven.returncode == 0, "nothing is written into the workspace"


@pytest.mark.second
def test_a_workspace_that_is_not_as_locked_is_refused(
    prepared: Path, tmp_path: Path, quickstart_workspace: Path
) -> None:
    """Its reward would not be the one that the lock names."""
    changed = tmp_path / "ws"
    shutil.copytree(quickstart_workspace, changed, symlinks=True)
    (changed / "code" / "verl" / "added.py").write_text("")
    (tmp_path / "tokenizer.json").write_text("{}")
    made = ("--output", tmp_path / "no", "--for", "mindspeed-rl", "--tokenizer", tmp_path)
    for words in (
        ("check", prepared, "--recipe", "quickstart"),
        ("prepare", "deepscaler", "--input", prepared / "prepared.json", *made),
    ):
        done = cli(*words, "--workspace", changed)
        assert done.returncode == 3
        assert "does not equal its lock" in done.stderr and "untracked  code/verl/added.py" in done.stderr


def rows(prepared: Path, name: str = "train.parquet") -> list[dict[str, Any]]:
    return pq.read_table(prepared / name).to_pylist()  # type: ignore[no-any-return]


def test_rows_without_an_answer_repeats_leakage_and_backslashes(prepared: Path, tmp_path: Path) -> None:
    spoilt, test = rows(prepared), rows(prepared, "test.parquet")
    spoilt[3]["reward_model"]["ground_truth"] = None
    spoilt[4]["prompt"] = []
    system = spoilt[5]["prompt"][0]
    system["content"] = system["content"].replace("\\boxed", "\\\\boxed")
    spoilt += [spoilt[0], *test]
    pq.write_table(pa.Table.from_pylist(spoilt), tmp_path / "a")
    checked = Checked([read_trainer_file(tmp_path / "a")], [read_trainer_file(prepared / "test.parquet")])
    found = findings(checked, "data.batch=500")
    assert found.pop("rows")[0] == "error"
    assert found == {
        "incomplete": ("error", "rows without a prompt, a data source or a right answer: 3, 4"),
        "repeated": ("advice", "1 prompts repeat an earlier one"),
        "leakage": ("advice", f"{len(test)} of {len(test)} prompts are among those that are trained on"),
        "template": (
            "advice",
            r"1 prompts spell \boxed with two backslashes, which a model may repeat",
        ),
    }


def test_columns_that_are_missing_or_of_another_type(prepared: Path, tmp_path: Path) -> None:
    table = pq.read_table(prepared / "train.parquet").drop_columns(["reward_model", "prompt"])
    for name in ("train.parquet", "test.parquet"):
        pq.write_table(table.append_column("prompt", pa.array(["t"] * table.num_rows)), tmp_path / name)
    checked = gather(load_recipe("quickstart", []), tmp_path, None, None, None, lambda _: None)
    messages = {one.message for one in data_findings(load_recipe("quickstart", []), checked)}
    assert messages == {
        "has no column reward_model",
        "column prompt is string, not a list of messages with role and content",
    }
    assert set(checked.unchecked) == {"reward", "lengths"}


SCORER = """
def score(data_source, solution_str, ground_truth, extra_info=None):
    if data_source == "boxed":
        return float(solution_str.count("boxed{" + ground_truth))
    if data_source == "last line":  # DAPO-Math-17k: verl#3065
        return float(solution_str.rpartition('Answer:')[2].strip() == ground_truth)
    if data_source == "package":
        import no_such_package
    if data_source == "unknown":
        raise NotImplementedError(data_source)
    return 0.0 if data_source == "own form" else float(ground_truth[solution_str])
"""


def test_what_a_reward_scores_of_several_sources_in_one_process(
    tmp_path: Path, quickstart_workspace: Path
) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(SCORER)
    loaded = load_recipe("quickstart", [f"reward.function={reward}:score", "reward.arguments=~"])
    truths: dict[str, Any] = dict.fromkeys(("boxed", "last line", "package", "unknown", "own form"), "34")
    samples = {
        name: [{"ground_truth": truth, "extra_info": None}] for name, truth in {**truths, "dict": {}}.items()
    }
    trials = try_reward(loaded, quickstart_workspace / "code", sys.executable, {}, samples)
    asked = {("boxed", ("####",)): 2, ("last line", ("Answer:",)): 1, ("own form", ("####",)): 1}
    file = TrainerFile(Path("f"), sources=dict.fromkeys(samples, 1), forms=asked)  # type: ignore[arg-type]
    checked = Checked([file], [], trials=trials)
    found = findings(checked, "data.batch=~")
    assert {name: severity for name, (severity, _) in found.items()} == dict.fromkeys(
        ("template", "source", "reward"), "error"
    )
    message = r'2 prompts of boxed ask for "####", and the reward scores a right answer only as \boxed{}'
    assert found["template"][1] == message
    assert "can't score data source unknown" in found["source"][1]
    assert "the right answer is a dict): KeyError" in found["reward"][1]
    why = unjudged(trials, "PYTHON")
    assert why.keys() == {"reward of package", "reward of own form"}, "neither is an error"
    assert "needs the package no_such_package, which PYTHON" in why["reward of package"]
    plain = Checked([TrainerFile(Path("f"), forms={("boxed", ()): 1})], [], trials=trials)  # type: ignore[arg-type]
    assert findings(plain)["template"][0] == "advice"


@pytest.mark.parametrize(
    ("given", "cut", "severity", "said"),
    [
        ("overlong=error", "", "error", "verl raises there"),
        ("overlong=left", "", "advice", "verl cuts them (left)"),
        ("overlong=error", "loop.py:352", "advice", "verl cuts them at their left (loop.py:352)"),
        ("filter_overlong=true", "loop.py:352", "note", "verl leaves them out"),
    ],
)
def test_longer_prompts(given: str, cut: str, severity: str, said: str) -> None:
    counts = {"overlong": 1, "rows": 3, "longest": 40}
    file = TrainerFile(Path("train.parquet"), rows=3)
    checked = Checked([file], [], lengths={"files": {"train.parquet": counts}}, cut_left=cut)
    found = findings(checked, "data.prompt_length=20", f"data.{given}")["lengths"]
    assert found[0] == severity and found[1].endswith(said)


@pytest.mark.second
def test_tokens_are_counted(tmp_path: Path) -> None:
    given = deepscaler(80)
    given[5]["problem"] = "long " * 300
    source, tokenizer = write(tmp_path / "d.json", given), made_tokenizer(tmp_path)
    limit = ("--tokenizer", tokenizer, "--max-prompt-length", "300")
    report = prepare("deepscaler", source, tmp_path / "out", *limit)
    counts = report["lengths"]["files"]
    assert report["lengths"]["limit"] == 300
    (name,) = (name for name, one in counts.items() if one["overlong"])
    (row,) = counts[name]["overlong_rows"]
    assert rows(tmp_path / "out", name)[row]["extra_info"]["index"] == 5 and counts[name]["longest"] > 300
    checked = gather(load_recipe("quickstart", []), tmp_path / "out", None, None, tokenizer, lambda _: None)
    assert checked.lengths and checked.lengths["files"].keys() == counts.keys()
    again = ("prepare", "deepscaler", "--input", source, "--output", tmp_path / "o2")
    for words, word in (
        (("--tokenizer", tmp_path / "out"), "has no tokenizer"),
        (("--max-prompt-length", "9"), "needs a tokenizer"),
    ):
        done = cli(*again, *words)
        assert done.returncode == 2 and word in done.stderr and not (tmp_path / "o2").exists()


def made_tokenizer(folder: Path) -> Path:
    """A small tokenizer; skips where transformers is not installed."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("transformers")
    code = "import sys; from npu_rl_make_tiny import make_tokenizer; make_tokenizer().save_pretrained(sys.argv[1])"
    from npu_rl.common.python_roots import REHEARSAL

    subprocess.run(
        [sys.executable, "-c", code, folder / "tokenizer"],
        env={**os.environ, "PYTHONPATH": str(REHEARSAL), "USE_TORCH": "0"},
        check=True,
        capture_output=True,
    )
    return folder / "tokenizer"


@pytest.mark.rehearsal
def test_verls_own_reward(quickstart_workspace: Path) -> None:
    """It scores what the default templates of the two ask for, and a last line "Answer: 34" of DAPO-Math-17k."""
    pytest.importorskip("tensordict")  # verl imports it, with ray and torch
    right = {
        "openai/gsm8k": ("hashes", "boxed", 0.0),
        "DigitalLearningGmbH/MATH-lighteval": ("boxed", "hashes", 0.0),
        "math_dapo": ("answer", "boxed", -1.0),
    }
    loaded = load_recipe("quickstart", ["reward.function=~", "reward.arguments=~"])
    samples = {name: [{"ground_truth": "34", "extra_info": {}}] for name in right}
    for trial in try_reward(loaded, quickstart_workspace / "code", sys.executable, {}, samples):
        form, other, wrong = right[trial.data_source]
        assert trial.scores[f"right-{form}"] == 1.0
        assert trial.scores[f"right-{other}"] == trial.scores[f"wrong-{form}"] == wrong
