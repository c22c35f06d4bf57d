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

from npu_rl.data.data_check.check_data import Checked, data_findings
from npu_rl.data.data_check.reward_trial import Trial, answer_of, responses
from npu_rl.data.datasets.trainer_files import TrainerFile
from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.datasets.test_prepare import cli, deepscaler, prepare, write
from tests.own_trainer import write_recipe
from tests.support import run_cli

pq = pytest.importorskip("pyarrow.parquet")
pa = pytest.importorskip("pyarrow")

DEEPSCALER = (
    "reward.function=npu_rl_runtime/rewards/deepscaler.py:compute_scores",
    "reward.manager=batch",
    "reward.arguments=~",
)


def check(folder: Path, workspace: Path, *more: str | Path) -> tuple[int, dict[str, Any]]:
    done = cli(
        "check", folder, "--recipe", "quickstart", "--workspace", workspace, "--json", "--python", sys.executable,
        "data.make=~", f"data.train=[{folder}/train.parquet]", f"data.test=[{folder}/test.parquet]", *more,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def rules(report: dict[str, Any], severity: str = "error") -> set[str]:
    return {one["rule"] for one in report["findings"] if one["severity"] == severity}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare("deepscaler", write(folder / "d.json", deepscaler(200)), folder / "out", "--template", "r1-zero")
    return folder / "out"


@pytest.mark.second
def test_prepared_files_fit_the_reward(prepared: Path, quickstart_workspace: Path) -> None:
    code, report = check(prepared, quickstart_workspace, *DEEPSCALER, "data.batch=16")
    assert code == 0 and report["ok"] and not rules(report) and not rules(report, "advice")
    scores = report["reward"][0]["scores"]
    assert scores["right-boxed"] == 1.0
    assert {scores[name] for name in ("right-plain", "right-answer", "wrong-boxed", "empty")} == {0.0}
    assert sum(file["rows"] for file in report["files"]) == 200
    assert report["files"][0]["data_sources"] == {"deepscaler": report["files"][0]["rows"]}
    assert list(report["unchecked"]) == ["lengths"]


def test_nothing_is_written_into_the_workspace(prepared: Path, quickstart_workspace: Path) -> None:
    check(prepared, quickstart_workspace, *DEEPSCALER)
    done = run_cli(["verify", "--deep", "--workspace", quickstart_workspace], os.environ)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.second
def test_a_workspace_that_is_not_as_locked_is_refused(
    prepared: Path, tmp_path: Path, quickstart_workspace: Path
) -> None:
    """Its reward would not be the one that the lock names."""
    changed = tmp_path / "ws"
    shutil.copytree(quickstart_workspace, changed, symlinks=True)
    (changed / "code" / "verl" / "added.py").write_text("")
    done = cli("check", prepared, "--recipe", "quickstart", "--workspace", changed)
    made = cli(
        "prepare", "deepscaler", "--input", prepared / "prepared.json", "--output", tmp_path / "no",
        "--for", "mindspeed-rl", "--tokenizer", made_tokenizer(tmp_path / "tokenizer"), "--workspace", changed,
    )  # fmt: skip
    assert (done.returncode, made.returncode) == (3, 3)
    for text in (done.stderr, made.stderr):
        assert "does not equal its lock" in text and "untracked  code/verl/added.py" in text


@pytest.mark.second
def test_prompts_that_ask_for_another_form(tmp_path: Path, quickstart_workspace: Path) -> None:
    source = write(tmp_path / "d.json", deepscaler(100))
    prepare("deepscaler", source, tmp_path / "out", "--template", "hashes")
    code, report = check(tmp_path / "out", quickstart_workspace, *DEEPSCALER, "data.batch=16")
    assert code == 1 and rules(report) == {"data-template"}
    assert (
        r'ask for "####", and the reward scores a right answer only as \boxed{}'
        in report["findings"][0]["message"]
    )
    prepare("deepscaler", source, tmp_path / "plain", "--template", "plain")
    code, report = check(tmp_path / "plain", quickstart_workspace, *DEEPSCALER, "data.batch=16")
    assert code == 0 and rules(report, "advice") == {"data-template"}


def test_a_data_source_that_the_reward_does_not_know(tmp_path: Path, quickstart_workspace: Path) -> None:
    source = tmp_path / "g.jsonl"
    source.write_text("".join(f'{{"question": "q{n}", "answer": "#### {n}"}}\n' for n in range(60)))
    prepare("gsm8k", source, tmp_path / "out")
    code, report = check(tmp_path / "out", quickstart_workspace, *DEEPSCALER, "data.batch=500")
    assert code == 1 and rules(report) == {"data-source", "data-rows"}


def rewritten(prepared: Path, folder: Path, change: Any, *, name: str = "train.parquet") -> Path:
    folder.mkdir()
    for file in ("train.parquet", "test.parquet"):
        table = pq.read_table(prepared / file)
        pq.write_table(change(table) if file == name else table, folder / file)
    return folder


def test_columns_that_are_missing_or_of_another_type(
    prepared: Path, tmp_path: Path, quickstart_workspace: Path
) -> None:
    def spoil(table: Any) -> Any:
        table = table.drop_columns(["reward_model", "prompt"])
        return table.append_column("prompt", pa.array(["text"] * table.num_rows))

    code, report = check(rewritten(prepared, tmp_path / "out", spoil), quickstart_workspace, *DEEPSCALER)
    messages = {one["message"] for one in report["findings"] if one["rule"] == "data-columns"}
    assert code == 1 and messages == {
        "has no column reward_model",
        "column prompt is string, not a list of messages with role and content",
    }
    assert set(report["unchecked"]) == {"reward", "lengths"}


def test_rows_without_an_answer_repeats_and_leakage(
    prepared: Path, tmp_path: Path, quickstart_workspace: Path
) -> None:
    test = pq.read_table(prepared / "test.parquet")

    def spoil(table: Any) -> Any:
        rows = table.to_pylist()
        rows[3]["reward_model"]["ground_truth"] = None
        rows[4]["prompt"] = []
        rows.append(rows[0])
        return pa.concat_tables([pa.Table.from_pylist(rows, table.schema), test])

    code, report = check(rewritten(prepared, tmp_path / "out", spoil), quickstart_workspace, *DEEPSCALER)
    found = {one["rule"]: one["message"] for one in report["findings"]}
    assert code == 1
    assert found["data-incomplete"] == "rows without a prompt, a data source or a right answer: 3, 4"
    assert found["data-repeated"] == "1 prompts repeat an earlier one"
    assert found["data-leakage"].startswith(f"{test.num_rows} of {test.num_rows} prompts")


def test_two_backslashes(prepared: Path, tmp_path: Path, quickstart_workspace: Path) -> None:
    def spoil(table: Any) -> Any:
        rows = table.to_pylist()
        for row in rows:
            row["prompt"][0]["content"] = row["prompt"][0]["content"].replace("\\boxed", "\\\\boxed")
        return pa.Table.from_pylist(rows, table.schema)

    code, report = check(rewritten(prepared, tmp_path / "out", spoil), quickstart_workspace, *DEEPSCALER)
    assert code == 0
    assert any("two backslashes" in one["message"] for one in report["findings"])


def test_a_reward_that_raises_or_is_not_python(
    prepared: Path, tmp_path: Path, quickstart_workspace: Path
) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return float(ground_truth in solution_str.split()[-1])\n"
    )
    own = (f"reward.function={reward}", "reward.arguments=~", "data.batch=16")
    code, report = check(prepared, quickstart_workspace, *own)
    assert code == 1 and "data-reward" in rules(report)
    assert "(empty; the right answer is a str): IndexError" in report["findings"][0]["message"]
    reward.write_text("import no_such_package\n")
    _, report = check(prepared, quickstart_workspace, *own)
    assert "no_such_package" in report["unchecked"]["reward"]


SCORERS = {
    "a last line": ("return float(solution_str.rpartition('Answer:')[2].strip() == ground_truth)", None),
    "no form of ours": ("return 0.0", "no right answer scores higher than a wrong one"),
    "a missing package": ("import no_such_package", "needs the package no_such_package, which"),
}


@pytest.mark.parametrize("name", SCORERS)
def test_a_scorer_with_a_form_of_its_own_is_no_error(
    name: str, prepared: Path, tmp_path: Path, quickstart_workspace: Path
) -> None:
    """DAPO-Math-17k asks for "Answer: ...", which was refused as a reward that scores nothing (verl#3065)."""
    body, why = SCORERS[name]
    reward = tmp_path / "reward.py"
    reward.write_text(f"def score(data_source, solution_str, ground_truth, extra_info=None):\n    {body}\n")

    def asking(table: Any) -> Any:
        rows = table.to_pylist()
        for row in rows:
            row["prompt"] = [
                {"role": "user", "content": f"{row['extra_info']['question']} End with Answer: X"}
            ]
        return pa.Table.from_pylist(rows, table.schema)

    folder = rewritten(prepared, tmp_path / "out", asking)
    pq.write_table(asking(pq.read_table(prepared / "test.parquet")), folder / "test.parquet")
    own = (f"reward.function={reward}:score", "reward.arguments=~", "data.batch=16")
    code, report = check(folder, quickstart_workspace, *own)
    assert code == 0 and not rules(report), report
    if why:
        assert why in report["unchecked"]["reward of deepscaler"]
    else:
        assert report["reward"][0]["scores"]["right-answer"] == 1.0 and list(report["unchecked"]) == [
            "lengths"
        ]


def test_an_answer_is_taken_from_the_truths_type() -> None:
    truths: tuple[Any, ...] = ("34", 3.5, ["a", "b"], {"target": ["x"]}, {"tests": []}, None)
    assert [answer_of(truth) for truth in truths] == ["34", "3.5", "a", "x", None, None]
    assert responses("7")["right-answer"].endswith("\nAnswer: 7")
    assert not [name for name in responses({"tests": []}) if name.startswith("right")]


def test_a_scorer_that_cannot_take_the_truth() -> None:
    """Its fix is not another data source."""
    trial = Trial("countdown", {"target": 5}, {"wrong-plain": "TypeError: unhashable", "empty": 0.0})
    checked = Checked([], [], trials=[trial])
    found = {one.rule: one.message for one in data_findings(load_recipe("quickstart", []), checked)}
    assert "is a dict" in found["data-reward"] and "data-source" not in found


def test_images_that_differ_from_the_prompts() -> None:
    file = TrainerFile(Path("train.parquet"), images_differ=list(range(7)), images_missing=2)
    checked = Checked([], [file])
    found = [
        one for one in data_findings(load_recipe("quickstart", []), checked) if one.rule == "data-images"
    ]
    assert [one.severity.value for one in found] == ["error", "advice"]
    assert "0, 1, 2, 3, 4 and 2 more" in found[0].message


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda folder: None, "No such folder"),
        (lambda folder: folder.mkdir(), "has no train.parquet"),
        (lambda folder: [folder.mkdir(), (folder / "train.parquet").write_text("x")], "has no test.parquet"),
        (
            lambda folder: [
                folder.mkdir(),
                *((folder / n).write_text("x") for n in ("train.parquet", "test.parquet")),
            ],
            "Parquet file can't be read",
        ),
    ],
)
def test_a_folder_that_is_none(make: Any, word: str, tmp_path: Path, quickstart_workspace: Path) -> None:
    make(tmp_path / "out")
    done = cli("check", tmp_path / "out", "--recipe", "quickstart", "--workspace", quickstart_workspace)
    assert done.returncode == 1 and word in done.stderr and "Traceback" not in done.stderr


def test_a_recipe_whose_trainer_reads_other_files(prepared: Path, tmp_path: Path) -> None:
    done = cli("check", prepared, "--recipe", str(write_recipe(tmp_path, "")))
    assert done.returncode == 2 and "does not read Parquet files" in done.stderr, done.stderr


@pytest.mark.second
def test_lengths(prepared: Path, tmp_path: Path, quickstart_workspace: Path) -> None:
    tokenizer = made_tokenizer(tmp_path)
    limit = ("--tokenizer", tokenizer, "data.batch=16", *DEEPSCALER)
    code, report = check(prepared, quickstart_workspace, *limit, "data.prompt_length=20")
    assert code == 1 and rules(report) == {"data-lengths"}
    counts = report["lengths"]["files"]["train.parquet"]
    assert counts["overlong"] == counts["rows"] and counts["longest"] > 20
    code, report = check(
        prepared, quickstart_workspace, *limit, "data.prompt_length=20", "data.filter_overlong=true"
    )
    assert code == 0 and rules(report, "note") == {"data-lengths"}
    code, report = check(prepared, quickstart_workspace, *limit, "data.prompt_length=5000")
    assert code == 0 and not report["findings"] and not report["unchecked"]


def test_longer_prompts_end_no_run_of_a_trainer_that_cuts_them() -> None:
    counts = {"overlong": 1, "rows": 3, "longest": 40}
    file = TrainerFile(Path("train.parquet"), rows=3)
    loaded = load_recipe("quickstart", ["data.prompt_length=20", "data.overlong=error"])
    for cut, severity, said in (
        ("", "error", "verl raises there"),
        ("loop.py:352", "advice", "left (loop.py:352)"),
    ):
        checked = Checked([file], [], lengths={"files": {"train.parquet": counts}}, cut_left=cut)
        (found,) = [one for one in data_findings(loaded, checked) if one.rule == "data-lengths"]
        assert found.severity.value == severity and found.message.endswith(said)


@pytest.mark.second
def test_prepare_counts_overlong_prompts(tmp_path: Path) -> None:
    tokenizer = made_tokenizer(tmp_path)
    rows = deepscaler(80)
    rows[5]["problem"] = "long " * 300
    source = write(tmp_path / "d.json", rows)
    report = prepare(
        "deepscaler", source, tmp_path / "out", "--tokenizer", tokenizer, "--max-prompt-length", "300"
    )
    counts = report["lengths"]["files"]
    assert report["lengths"]["limit"] == 300
    assert sum(one["overlong"] for one in counts.values()) == 1
    name = next(name for name, one in counts.items() if one["overlong"])
    (row,) = counts[name]["overlong_rows"]
    assert pq.read_table(tmp_path / "out" / name).to_pylist()[row]["extra_info"]["index"] == 5
    again = ("prepare", "deepscaler", "--input", source, "--output", tmp_path / "o2")
    done = cli(*again, "--tokenizer", tmp_path / "out")
    assert done.returncode == 2 and "has no tokenizer" in done.stderr and not (tmp_path / "o2").exists()
    done = cli(*again, "--max-prompt-length", "9")
    assert done.returncode == 2 and "needs a tokenizer" in done.stderr


def made_tokenizer(folder: Path) -> Path:
    """A small tokenizer; skips where transformers is not installed."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("transformers")
    code = "import sys; from npu_rl_make_tiny import make_tokenizer; make_tokenizer().save_pretrained(sys.argv[1])"
    from npu_rl.common.python_roots import INJECTED

    subprocess.run(
        [sys.executable, "-c", code, folder / "tokenizer"],
        env={**os.environ, "PYTHONPATH": str(INJECTED), "USE_TORCH": "0"},
        check=True,
        capture_output=True,
    )
    return folder / "tokenizer"


@pytest.mark.rehearsal
@pytest.mark.parametrize("name", ["gsm8k", "math-lighteval"])
def test_verls_own_reward(name: str, tmp_path: Path, quickstart_workspace: Path) -> None:
    """The default templates of the two ask for what verl's own function scores."""
    pytest.importorskip("tensordict")  # verl imports it, with ray and torch
    field = {"gsm8k": ("question", "#### {}"), "math-lighteval": ("problem", r"so \boxed{{{}}}")}[name]
    rows = [
        {field[0]: f"q{n}", {"gsm8k": "answer"}.get(name, "solution"): field[1].format(n)} for n in range(60)
    ]
    prepare(name, write(tmp_path / "d.json", rows), tmp_path / "out")
    code, report = check(
        tmp_path / "out", quickstart_workspace, "reward.function=~", "reward.arguments=~", "data.batch=16"
    )
    assert code == 0 and not report["findings"], report
    scores = report["reward"][0]["scores"]
    right, other = ("hashes", "boxed") if name == "gsm8k" else ("boxed", "hashes")
    assert scores[f"right-{right}"] == 1.0
    assert scores[f"right-{other}"] == scores[f"wrong-{right}"] == scores["empty"] == 0.0


@pytest.mark.rehearsal
def test_verls_own_reward_for_dapo(prepared: Path, tmp_path: Path, quickstart_workspace: Path) -> None:
    """DAPO-Math-17k's shape: `math_dapo` scores a last line "Answer: 34", for which the prompt asks."""
    pytest.importorskip("tensordict")

    def as_dapo(table: Any) -> Any:
        rows = table.to_pylist()
        for row in rows:
            row |= {
                "data_source": "math_dapo",
                "prompt": [{"role": "user", "content": "1+1? End with Answer:"}],
            }
        return pa.Table.from_pylist(rows, table.schema)

    folder = rewritten(prepared, tmp_path / "out", as_dapo)
    pq.write_table(as_dapo(pq.read_table(prepared / "test.parquet")), folder / "test.parquet")
    code, report = check(
        folder, quickstart_workspace, "reward.function=~", "reward.arguments=~", "data.batch=16"
    )
    assert code == 0 and not rules(report) and list(report["unchecked"]) == ["lengths"], report
    scores = report["reward"][0]["scores"]
    assert (scores["right-answer"], scores["wrong-answer"], scores["right-boxed"]) == (1.0, -1.0, -1.0)
