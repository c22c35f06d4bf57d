"""The page: everything of a record as text, no empty section, and nothing of others' text run."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import NpuRlError, UsageError
from npu_rl.training.monitor.metrics import MetricsWriter
from npu_rl.training.report.write_report import ReportRequest, write_report
from tests.report.made_run import (
    ENVIRONMENT,
    FACTS,
    LOCK,
    alarm,
    hostile_record,
    made_attempt,
    made_record,
    metrics,
    write_samples,
)
from tests.support import ROOT

UPLOT = {
    "uplot-1.6.32.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot-1.6.32.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "h3", "p", "b", "div", "span"),
    *("nav", "a", "main", "section", "article", "figure", "figcaption", "dl", "dt", "dd", "table", "thead"),
    *("tbody", "tr", "th", "td", "details", "summary", "pre", "footer", "script", "noscript"),
}


class Page(HTMLParser):
    """What a parser sees: elements with their attributes, text, and the data of the script."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert {name for name, _ in self.tags} <= TAGS
        scripts = [attributes for name, attributes in self.tags if name == "script"]
        assert scripts == [{"type": "application/json", "id": "data"}, {}, {}]
        assert not any(
            name.startswith("on") or name in ("src", "style") for _, of in self.tags for name in of
        )
        drawn = re.search(r'id="data">(.*?)</script>', html, re.DOTALL)
        assert drawn is not None
        self.data: dict[str, Any] = json.loads(drawn[1])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def sections(self) -> list[str | None]:
        return [attributes["id"] for name, attributes in self.tags if name == "section"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def html_of(root: Path, name: str = "demo", against: tuple[Path, str] | None = None) -> str:
    output = root.parent / "report.html"
    write_report(ReportRequest((root, name), output, against))
    return output.read_text(encoding="utf-8")


def page_of(root: Path, name: str = "demo", against: tuple[Path, str] | None = None) -> Page:
    return Page(html_of(root, name, against))


def written_metrics(root: Path, name: str, rows: Sequence[Mapping[str, float]]) -> None:
    """Write a record whose steps have these metrics in place of the usual ones."""
    attempt = made_attempt(made_record(root, name), [])
    with MetricsWriter(attempt.metrics) as writer:
        for step, row in enumerate(rows, 1):
            writer.write(step, {**metrics(step), **row})


def test_everything_of_a_record_is_found(root: Path) -> None:
    record = made_record(root)
    alarms = [alarm(f"Step 5: case {number}", kind) for number, kind in enumerate(("nan", "transfer"))]
    first = made_attempt(record, range(1, 6), alarms=alarms, end="stopped")
    first.lost_nodes.write_text(json.dumps([{"host": "node3", "ip": "10.99.7.3", "reason": "no heartbeat"}]))
    made_attempt(record, range(5, 9), environment={**ENVIRONMENT, "HCCL_BUFFSIZE": "600"})
    write_samples(record, 8, [{"input": "1 + 1?", "output": "two", "score": 1.0}])
    (record.checkpoints / "global_step_8").mkdir()
    (record.checkpoints / "latest_checkpointed_iteration.txt").write_text("8")
    page = page_of(root)
    assert page.sections == ["alarms", "charts", "figures", "samples", "attempts", "nodes", "provenance"]
    lock = LOCK.decode()
    ids = set(re.findall(r"[0-9a-f]{40,64}", lock)) | {str(FACTS["tree"]), str(FACTS["commit"])}
    assert len(ids) > 80
    for found in (*ids, record.id, *re.findall(r"refs/pull/\d+/head|https://[^\"]*\.git", lock)):
        assert found in page.text, found
    for found in (
        "optimizer.lr=3e-3",
        "2.42.1",
        "NPU_RL_SEED",
        "600",
        "node-a (10.0.0.1)",
        "stopped",
        "1 + 1?",
    ):
        assert found in page.text, found
    for found in ("step 8", "node3 (10.99.7.3): no heartbeat", "steps 1-5, from 5 on replaced"):
        assert found in page.text, found
    assert all(str(one["message"]) in page.text and str(one["cause"]) in page.text for one in alarms)
    assert page.data["marks"] == []  # step 5 of the first attempt is not in the curve


def test_no_section_is_empty(root: Path) -> None:
    made_record(root)
    page = page_of(root)
    assert page.sections == ["provenance"] and "Nothing was started." in page.text
    made_attempt(made_record(root, "failed"), [], end="failed")
    page = page_of(root, "failed")
    assert page.sections == ["attempts", "nodes", "provenance"] and "No step has finished." in page.text


def test_the_goal_is_a_line_in_the_chart_of_rewards(root: Path) -> None:
    made_attempt(made_record(root, facts={**FACTS, "goal": 0.75}), [1, 2, 3])
    page = page_of(root)
    goals = {
        id: [one["values"] for one in panel if one.get("limit")] for id, panel in page.data["panels"].items()
    }
    assert {id: values for id, values in goals.items() if values} == {"reward": [[0.75, 0.75, 0.75]]}
    assert "goal0.75" in page.text.replace("\n", "")


def test_alarms_of_one_cause_are_one(root: Path) -> None:
    again = [
        {**alarm(f"Step {step}: odd"), "cause": "one cause", "hint": "runs stop demo"} for step in (2, 4)
    ]
    made_attempt(made_record(root), range(1, 6), alarms=[*again, alarm("Step 5: once", "transfer")])
    page = page_of(root)
    assert [name for name, _ in page.tags].count("article") == 2
    assert (
        "nan: step 2, 2 times, the last at step 4, attempt 1" in page.text and "runs stop demo" in page.text
    )
    assert page.data["marks"] == [2, 4, 5]


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.7976931348623157e308, 5e-324, 0.0])
def test_a_run_of_extreme_values_has_a_report(root: Path, value: float) -> None:
    written_metrics(root, "odd", [dict.fromkeys(metrics(1), value)] * 3)
    written_metrics(root, "usual", [{}] * 2)
    for page in (page_of(root, "odd"), page_of(root, "usual", (root, "odd"))):
        drawn = [one for panel in page.data["panels"].values() for one in panel]
        assert all(len(one["values"]) == len(page.data["steps"]) for one in drawn)
        assert math.isfinite(value) or "NaN or infinite in 3 steps:\n1, 2, 3" in page.text


def test_hostile_text_in_every_field_is_text(root: Path) -> None:
    """Names of components, variables and metrics, ids, messages, samples, recipe: a parser finds each again as text."""
    hostile_record(root)
    made_attempt(made_record(root, "other"), [1])
    for against in (None, (root, "other")):
        html = html_of(root, against=against)
        assert Page(html).text.count("document.title='x'</script>") > 40
        assert r"\u202eevil\u2066\x00\x1b[" in html and r"raw \udcff" in html
        assert not set(html) & set("\u202e\u2066\x00\x1b") and "<img" not in html


def test_secrets_are_masked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "wb-0123456789abcdef")
    record = made_record(root)
    said = alarm("at https://me:hunter22@example.org with wb-0123456789abcdef, token=hunter22hunter22")
    attempt = made_attempt(record, [1], alarms=[said])
    words = {"WANDB_API_KEY": "other-secret-1", "URL": "https://me:hunter22@example.org"}
    (attempt.folder / "environment.json").write_text(json.dumps(words))
    attempt.nodes.write_text(
        json.dumps({"nodes": [{"host": "a", "environment": {"HCCL_KEY": "other-secret-1"}}]})
    )
    write_samples(record, 1, [{"input": "q", "output": "wb-0123456789abcdef", "score": 1.0}])
    html = html_of(root)
    assert "***" in html
    assert [one for one in ("wb-0123456789abcdef", "other-secret-1", "hunter22") if one in html] == []


def test_the_policy_allows_the_two_scripts_and_nothing_else(root: Path) -> None:
    made_attempt(made_record(root), [1])
    html = html_of(root)
    (policy,) = (of["content"] or "" for _, of in Page(html).tags if of.get("http-equiv"))
    assert "unsafe" not in policy and "http" not in policy and policy.startswith("default-src 'none'")
    parts = [re.findall(rf"<{name}>(.*?)</{name}>", html, re.DOTALL) for name in ("script", "style")]
    digests = [base64.b64encode(hashlib.sha256(x.encode()).digest()).decode() for part in parts for x in part]
    assert re.findall(r"'sha256-([^']*)'", policy) == digests and len(digests) == 4
    assert not re.search(r"(?:src|href)=\"(?!#)", html)


def test_against_another_run_what_differs_is_listed(tmp_path: Path, root: Path) -> None:
    for place, name, more in (("runs", "demo", {}), ("newest/runs", "demo", {"HCCL_BUFFSIZE": "500"})):
        record = made_record(tmp_path / place, name)
        stack = "today" if more else "quickstart"
        (record.folder / "lock.json").write_bytes((ROOT / f"manifests/{stack}.lock.json").read_bytes())
        made_attempt(record, [1, 2], environment={**ENVIRONMENT, **more})
    page = page_of(root, against=(tmp_path / "newest/runs", "demo"))
    for found in (
        f"Against {tmp_path}/newest/runs/demo",
        "variables.HCCL_BUFFSIZE",
        "500",
        "verl: pin",
        "verl==0.5.0",
    ):
        assert found in page.text, found
    names = [one["name"] for one in page.data["panels"]["entropy"]]
    assert names == ["entropy", f"{tmp_path}/newest/runs/demo: entropy"[:100]]
    assert "Nothing of recipe, tree" in page_of(root, against=(root, "demo")).text


def test_samples_are_the_best_the_worst_and_the_last(root: Path) -> None:
    record = made_record(root)
    made_attempt(record, range(1, 21))
    scores = (0.5, 1.0, 0.0, 0.25)
    rows = [
        {"input": f"question {place}", "output": "x" * 10**6, "score": score}
        for place, score in enumerate(scores)
    ]
    for step in range(1, 21):
        write_samples(record, step, [*rows, b"not a sample", b'{"input": "\xff'])
    write_samples(record, 20, rows[:1])
    (record.samples / "validation").mkdir()
    (record.samples / "validation/10.jsonl").write_bytes(b'{"input": "v", "output": "w", "reward": 1}\n' * 9)
    html = html_of(root)
    steps = re.findall(r"<summary>(Step|Validation at step) (\d+),\n.*?(\d+) responses", html)
    assert steps == [
        *(("Step", str(step), "4") for step in (1, 5, 9, 12, 16)),
        ("Step", "20", "1"),
        ("Validation at step", "10", "9"),
    ]
    first = html.partition("<summary>Step 1,")[2].partition("<summary>")[0]
    assert re.findall(r"<b>(\w+)</b>, reward ([\d.]+)</p><pre>question (\d)", first) == [
        ("best", "1", "1"),
        ("worst", "0", "2"),
        ("last", "0.25", "3"),
    ]
    assert "<b>best, worst, last</b>" in html and "997,000 characters left out" in html
    assert len(html) < 400_000


def test_a_failure_is_at_the_head(root: Path) -> None:
    attempt = made_attempt(made_record(root), range(1, 3))
    attempt.fall_short(NpuRlError("ValueError: <b>sizes</b> differ"))
    head = page_of(root).text.partition("Charts")[0]
    assert "ValueError: <b>sizes</b> differ" in head


def test_a_damaged_record_has_no_report(root: Path) -> None:
    attempt = made_attempt(made_record(root), [1])
    (attempt.folder / "command.json").write_bytes(b"{\xff")
    with pytest.raises(NpuRlError) as found:
        html_of(root)
    assert str(found.value.where) == str(attempt.folder / "command.json")


def test_only_a_report_is_replaced(root: Path) -> None:
    made_attempt(made_record(root), [1])
    output = root.parent / "report.html"
    for content in (b"", html_of(root).encode()):
        output.write_bytes(content)
        assert write_report(ReportRequest((root, "demo"), output)).size == output.stat().st_size
    for content in (b"<!doctype html>\n<html>mine</html>", b"x"):
        output.write_bytes(content)
        with pytest.raises(UsageError):
            write_report(ReportRequest((root, "demo"), output))
        assert output.read_bytes() == content
    with pytest.raises(UsageError):
        write_report(ReportRequest((root, "demo"), root))


def test_uplot_is_as_its_authors_published_it() -> None:
    """The files of the package uplot 1.6.32 on npm: dist/uPlot.iife.min.js, dist/uPlot.min.css, LICENSE."""
    folder = ROOT / "npu_rl" / "training" / "report" / "assets"
    assert {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("uplot*")
    } == UPLOT
