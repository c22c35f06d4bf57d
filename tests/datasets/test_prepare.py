"""`npu-rl data prepare`: what it writes, what it leaves out, and that it is the same each time."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.in_process import run_here
from tests.support import run_cli

pq = pytest.importorskip("pyarrow.parquet")
pa = pytest.importorskip("pyarrow")


def cli(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return run_here(["data", *args], os.environ)


def prepare(dataset: str, source: Path, target: Path, *more: str | Path) -> dict[str, Any]:
    done = cli("prepare", dataset, "--input", source, "--output", target, "--json", *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def deepscaler(count: int) -> list[dict[str, Any]]:
    return [
        {"problem": f"What is ${n}+{n}$?", "answer": str(2 * n), "solution": f"It is {2 * n}, since é."}
        for n in range(count)
    ]


def write(path: Path, rows: Any) -> Path:
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    return pq.read_table(folder / f"{name}.parquet").to_pylist()  # type: ignore[no-any-return]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_deepscaler_rows_are_as_verl_loads_them(tmp_path: Path) -> None:
    source = write(tmp_path / "deepscaler.json", deepscaler(300))
    report = prepare("deepscaler", source, tmp_path / "out", "--template", "r1-zero")
    train, test = table(tmp_path / "out", "train"), table(tmp_path / "out", "test")
    assert len(train) + len(test) == 300 and 15 <= len(test) <= 50
    row = train[3]
    index = row["extra_info"]["index"]
    assert row["data_source"] == "deepscaler" and row["ability"] == "math"
    assert row["reward_model"] == {"style": "rule", "ground_truth": str(2 * index)}
    assert [m["role"] for m in row["prompt"]] == ["system", "user"]
    assert row["prompt"][1]["content"] == f"What is ${index}+{index}$?"
    assert (
        r"within \boxed{}." in row["prompt"][0]["content"] and r"\\boxed" not in row["prompt"][0]["content"]
    )
    assert row["extra_info"]["split"] == "train" and row["extra_info"]["answer"].endswith("since é.")
    assert {r["extra_info"]["split"] for r in test} == {"test"}
    assert report["files"]["train.parquet"]["rows"] == len(train)


def test_gsm8k_takes_the_number_after_the_hashes(tmp_path: Path) -> None:
    source = tmp_path / "train.jsonl"
    rows = [{"question": f"q{n}", "answer": f"thus\n#### {n},000"} for n in range(60)] + [
        {"question": "none", "answer": "thus 7"}
    ]
    source.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    report = prepare("gsm8k", source, tmp_path / "out")
    row = table(tmp_path / "out", "train")[0]
    n = row["extra_info"]["index"]
    assert row["reward_model"]["ground_truth"] == f"{n}000"
    assert row["prompt"][0]["content"].endswith('output the final answer after "####".')
    assert row["data_source"] == "openai/gsm8k"
    assert report["dropped"] == {"no-answer": {"train.jsonl": [60]}}


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"so $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"first \boxed{1}, then \boxed{2}", "2"),
        (r"so $\boxed 5$ it is", "5"),
        (r"cut \boxed{1", None),
        ("none", None),
        (r"\fbox{3}", None),
    ],
)
def test_math_takes_the_last_box(solution: str, answer: str | None) -> None:
    from npu_rl.data.datasets.known_datasets import last_boxed

    assert last_boxed(solution) == answer


def test_what_is_left_out_is_counted_and_listed(tmp_path: Path) -> None:
    rows = deepscaler(60)
    rows[1]["answer"] = " "
    rows[2]["answer"] = float("nan")
    rows[3]["problem"] = None
    rows[5] = {**rows[4], "problem": "What  is\n$4+4$? "}
    rows[7] = {**rows[6], "answer": "other"}
    rows[8]["answer"] = 16
    rows[9]["answer"] = 10**400
    rows[10]["answer"] = ["a", "list"]
    source = write(tmp_path / "d.json", rows)
    report = prepare("deepscaler", source, tmp_path / "out")
    assert report["dropped"] == {
        "no-answer": {"d.json": [1, 2, 10]},
        "no-problem": {"d.json": [3]},
        "duplicate": {"d.json": [5]},
        "contradiction": {"d.json": [7]},
    }
    kept = table(tmp_path / "out", "train") + table(tmp_path / "out", "test")
    truths = {row["extra_info"]["index"]: row["reward_model"]["ground_truth"] for row in kept}
    assert truths[8] == "16" and truths[9] == str(10**400)
    listed = json.loads((tmp_path / "out/prepared.json").read_text())
    assert listed["dropped"] == report["dropped"]
    said = cli("prepare", "deepscaler", "--input", source, "--output", tmp_path / "again").stdout
    assert "1 without a problem, 3 without an answer, 1 repeat an earlier row" in said


def test_the_same_bytes_each_time(tmp_path: Path) -> None:
    source = write(tmp_path / "d.json", deepscaler(5000))
    for name, seed in (("a", "0"), ("b", "4711")):
        words = ["data", "prepare", "deepscaler", "--input", source, "--output", tmp_path / name]
        done = run_cli(words, {**os.environ, "PYTHONHASHSEED": seed})
        assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_the_split_does_not_depend_on_order_or_neighbours(tmp_path: Path) -> None:
    def test_problems(rows: list[dict[str, Any]], name: str, *more: str) -> set[str]:
        prepare("deepscaler", write(tmp_path / f"{name}.json", rows), tmp_path / name, *more)
        return {row["extra_info"]["question"] for row in table(tmp_path / name, "test")}

    rows = deepscaler(400)
    first = test_problems(rows, "first")
    random.Random(1).shuffle(rows)
    assert test_problems(rows, "shuffled") == first
    kept = {row["problem"] for row in rows[:300]}
    assert test_problems(rows[:300], "fewer") == first & kept
    assert test_problems(rows, "seed", "--seed", "1") != first


def test_a_test_file_of_its_own_and_leakage(tmp_path: Path) -> None:
    write(tmp_path / "train.json", deepscaler(50))
    own = deepscaler(80)[40:]
    write(tmp_path / "test.json", own)
    args = ("prepare", "deepscaler", "--input", tmp_path / "train.json", "--test", tmp_path / "test.json")
    done = cli(*args, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "Leakage: 10 problems of test.parquet are in train.parquet, too." in done.stdout
    report = json.loads((tmp_path / "out/prepared.json").read_text())
    assert report["leaked"] == list(range(10)) and report["valid"] is None
    assert {name: facts["rows"] for name, facts in report["files"].items()} == {
        "train.parquet": 50,
        "test.parquet": 40,
    }


def test_the_default_template_asks_for_what_the_reward_looks_for() -> None:
    from npu_rl.data.datasets.known_datasets import DATASETS
    from npu_rl.data.datasets.prompt_templates import TEMPLATES, asked_for

    for dataset in DATASETS.values():
        template = TEMPLATES[dataset.template]
        assert template.asks_for == dataset.looks_for
    for template in TEMPLATES.values():
        assert asked_for(template.chat("What is 1+1?")[0]["content"] + template.suffix) == (
            (template.asks_for,) if template.asks_for else ()
        )
    assert asked_for(r"within \\boxed{}, after Answer:") == ("Answer:",)


def test_overwrite_spares_what_prepare_did_not_make(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/train.parquet").write_text("mine")
    done = cli("prepare", "deepscaler", "--input", source, "--output", tmp_path / "out", "--overwrite")
    assert done.returncode == 2 and "it has no prepared.json" in done.stderr
    assert contents(tmp_path / "out") == {"train.parquet": b"mine"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.json", "out"]


def test_overwrite_moves_aside_what_prepare_made(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare("deepscaler", source, out)
    (out / "notes.txt").write_text("mine")
    before = contents(out)
    words = (
        "prepare",
        "deepscaler",
        "--input",
        write(tmp_path / "other.json", deepscaler(90)),
        "--output",
        out,
    )
    done = cli(*words)
    assert done.returncode == 2 and "already prepared" in done.stderr and "--overwrite" in done.stderr
    assert contents(out) == before
    for number in (1, 2):
        done = cli(*words, "--overwrite")
        assert done.returncode == 0 and f"the former {out} is {out}.old-{number} now" in done.stderr
        assert contents(out).keys() == {"prepared.json", "test.parquet", "train.parquet"}
    assert contents(tmp_path / "out.old-1") == before and contents(tmp_path / "out.old-2") == contents(out)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
