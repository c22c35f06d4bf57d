"""The page: everything of a record as text, whatever is missing named, and nothing of others' text run."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from npu_rl.common.errors import UsageError
from npu_rl.training.monitor.metrics import MetricsWriter
from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.report.gather_report import MOST_ALARMS, gather_run
from npu_rl.training.report.write_report import ReportRequest, write_report
from tests.report.made_run import (
    ENVIRONMENT,
    FACTS,
    HEAD,
    LOCK,
    PIN,
    SHA,
    alarm,
    made_attempt,
    made_record,
    metrics,
    write_samples,
)
from tests.report.test_markup import Read, read
from tests.support import ROOT

TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "header",
        "h1",
        "h2",
        "h3",
        "p",
        "b",
        "div",
        "span",
        "nav",
        "a",
    ),
    *(
        "main",
        "section",
        "figure",
        "figcaption",
        "svg",
        "path",
        "text",
        "ul",
        "li",
        "table",
        "thead",
        "tbody",
        "tr",
    ),
    *("th", "td", "details", "summary", "pre", "code", "footer", "script"),
}
ATTRIBUTES = {
    *(
        "lang",
        "charset",
        "http-equiv",
        "content",
        "name",
        "class",
        "id",
        "href",
        "scope",
        "data-label",
        "type",
    ),
    *("viewbox", "role", "aria-label", "aria-hidden", "d", "x", "y", "text-anchor"),
}
UPLOT = {
    "uplot-1.6.32.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot-1.6.32.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def page_of(root: Path, name: str = "demo", **settings: object) -> str:
    output = root.parent / "report.html"
    write_report(ReportRequest((root, name), output, **settings))  # type: ignore[arg-type]
    return output.read_text(encoding="utf-8")


def parsed(page: str) -> Read:
    """Return the page as a parser reads it, once it has no element or attribute that a report has not."""
    found = read(page)
    assert {name for name, _ in found.tags} <= TAGS
    assert {name for _, attributes in found.tags for name in attributes} <= ATTRIBUTES
    assert [attributes for name, attributes in found.tags if name == "script"] == [
        {"type": "application/json", "id": "data"},
        {},
        {},
    ]
    drawn = re.search(r'id="data">(.*?)</script>', page)
    assert drawn is not None
    for panel in json.loads(drawn[1]):
        assert all(len(one["values"]) == len(panel["steps"]) for one in panel["series"])
    return found


def written_metrics(root: Path, name: str, rows: Sequence[Mapping[str, float]]) -> None:
    """Write a record whose steps have these metrics in place of the usual ones."""
    attempt = made_attempt(made_record(root, name), [])
    with MetricsWriter(attempt.metrics) as writer:
        for step, row in enumerate(rows, 1):
            writer.write(step, {**metrics(step), **row})


def test_a_metric_that_is_never_finite_has_a_chart_that_says_so(root: Path) -> None:
    written_metrics(root, "demo", [{"actor/grad_norm": math.nan}] * 3)
    page = page_of(root)
    assert "NaN or infinite, and not drawn, in step 1, 2, 3." in parsed(page).text
    drawn = re.findall(r'"id":"([a-z-]+)"', page)
    assert "reward" in drawn and "grad-norm" not in drawn
    written_metrics(root, "whole", [{}] * 3)
    text = parsed(page_of(root, "whole", against=(root, "demo"))).text
    assert "demo: actor: - at last" in text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.7976931348623157e308, 5e-324, 0.0])
def test_a_run_of_extreme_values_has_a_report(root: Path, value: float) -> None:
    for name, count in (("one", 1), ("two", 12)):
        written_metrics(root, name, [dict.fromkeys(metrics(1), value)] * count)
    parsed(page_of(root, "one"))
    parsed(page_of(root, "two", against=(root, "one")))
    written_metrics(root, "usual", [{}] * 2)
    parsed(page_of(root, "usual", against=(root, "one")))


def test_everything_of_a_record_is_found_as_text(root: Path) -> None:
    record = made_record(root)
    alarms = [alarm(f"Step 5: case {number}", kind) for number, kind in enumerate(("nan", "transfer"))]
    made_attempt(record, range(1, 6), alarms=alarms, end="stopped")
    made_attempt(record, range(5, 9), environment={**ENVIRONMENT, "HCCL_BUFFSIZE": "600"})
    write_samples(record, 8, [{"input": "1 + 1?", "output": "two", "score": 1.0}])
    text = parsed(page_of(root)).text
    ids = re.findall(r"[0-9a-f]{40,64}", json.dumps([LOCK, FACTS]))
    assert len(set(ids)) > 12
    for found in (
        *ids,
        record.id,
        "refs/pull/17/head",
        "https://example.org/verl.git",
        "OF_THE_MANIFEST",
        "ab" * 28,
    ):
        assert found in text
    for found in (
        "steps=8",
        "optimizer.lr=3e-3",
        "2.42.1",
        "NPU_RL_SEED",
        "300",
        "600",
        "node-a",
        "stopped",
        "1 + 1?",
    ):
        assert found in text
    for found in alarms:
        assert str(found["message"]) in text and str(found["cause"]) in text


def test_alarms_of_steps_that_were_run_again_say_so_and_the_overlap_is_cut(root: Path) -> None:
    record = made_record(root)
    made_attempt(record, range(1, 8), alarms=[alarm("Step 7: odd")], end="failed")
    made_attempt(record, range(5, 9))
    run = gather_run(recorded_run(root, "demo"))
    assert [one.left_out for one in run.attempts] == [(5, 7), None]
    assert [point.step for point in run.points] == list(range(1, 9))
    assert [run.replaced(one) for one in run.alarms] == [True]
    text = parsed(page_of(root)).text
    assert "5 to 7, since a later attempt went on from an earlier step" in text
    assert "A later attempt went on from an earlier step." in text


def test_an_alarm_says_what_to_do_and_how_often_it_came(root: Path) -> None:
    record = made_record(root)
    hint = "Stop the run: `npu-rl runs stop demo`, token=hunter22hunter22."
    again = [{**alarm(f"Step {step}: odd"), "cause": "one cause", "hint": hint} for step in (2, 4)]
    made_attempt(record, range(1, 5), alarms=[*again, alarm("Step 4: once", "transfer")], end="failed")
    made_attempt(record, range(5, 9), alarms=[{**again[0], "message": "of another attempt"}])
    found = recorded_run(root, "demo").alarms
    assert [(one.count, one.hint) for one in found] == [(1, hint), (2, hint), (1, ""), (1, hint)]
    text = parsed(page_of(root)).text
    assert "npu-rl runs stop demo" in text and "hunter22" not in text
    assert [text.count(f"time {count} of 2") for count in (1, 2)] == [1, 1]


def test_many_alarms_are_counted(root: Path) -> None:
    attempt = made_attempt(made_record(root), [1], end=None)
    line = json.dumps(alarm("Step 1: again")) + "\n"
    attempt.alarms.write_text(line * (MOST_ALARMS + 7))
    attempt.close("done", 0)
    assert "7 more are in alarms.jsonl" in parsed(page_of(root)).text


def test_a_record_without_steps_says_so(root: Path) -> None:
    made_attempt(made_record(root), [], end="failed")
    text = parsed(page_of(root)).text
    assert "No step has finished" in text
    assert "No samples of responses were recorded" in text
    assert "Not logged in this run: actor/entropy" in text


def test_a_record_without_attempts_says_so(root: Path) -> None:
    made_record(root)
    text = parsed(page_of(root)).text
    assert "nothing was started" in text and "not started" in text


HOSTILE = (
    "</script><script>document.title='x'</script><img src=x onerror=\"document.title='x'\">"
    "\u202eevil\u2066\x00\x1b["
)


def test_hostile_text_is_shown_and_never_markup(root: Path) -> None:
    record = made_record(
        root, facts={**FACTS, "recipe": HOSTILE, "overrides": [HOSTILE], "manifest": HOSTILE}
    )
    made_attempt(
        record, [1], alarms=[alarm(HOSTILE)], environment={"NPU_RL_SEED": HOSTILE}, recipe=f"# {HOSTILE!r}\n"
    )
    write_samples(
        record,
        1,
        [
            {"input": HOSTILE, "output": HOSTILE, "score": 1.0},
            {"input": "long", "output": "x" * 1_000_000 + "END", "score": 0.5},
            {"input": "lone \ud800", "output": "a" * 10, "score": 0.0},
            b'{"input": "raw \xff\xfe", "output": "bytes \x80", "score": 2.0}',
            b"not a sample",
        ],
    )
    page = page_of(root)
    found = parsed(page)
    assert "document.title='x'</script>" in found.text
    assert r"\u202eevil\u2066\x00\x1b[" in found.text
    assert "1 line can't be read" in found.text
    assert r"raw \udcff\udcfe" in found.text
    assert not set(page) & set("\u202e\u2066\x00\x1b")


def test_the_name_of_a_validation_is_as_harmless_in_the_scripts_data(root: Path) -> None:
    attempt = made_attempt(made_record(root), [1], end=None)
    with MetricsWriter(attempt.metrics) as writer:
        writer.write(2, {f"val-core/\u202e{HOSTILE}{'w' * 10_000}/acc": 0.5})
    attempt.close("done", 0)
    page = page_of(root)
    drawn = re.search(r'id="data">(.*?)</script>', page)
    assert drawn is not None and r"val-core/\u202e</script>" in parsed(page).text
    names = [one["name"] for panel in json.loads(drawn[1]) for one in panel["series"]]
    assert [name for name in names if name.startswith(r"val-core/\u202e</script>")]
    assert max(map(len, names)) < 120
    assert "".join(names).isprintable()


def test_a_long_response_is_cut_and_says_by_how_much(root: Path) -> None:
    record = made_record(root)
    made_attempt(record, [1])
    write_samples(record, 1, [{"input": "q", "output": "x" * 1_000_000 + "END", "score": 1.0}])
    text = parsed(page_of(root)).text
    assert "997,003 characters left out" in text and "xEND" in text
    assert len(text) < 300_000


def test_secrets_are_masked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "wb-0123456789abcdef")
    record = made_record(root)
    attempt = made_attempt(record, [1], end=None)
    attempt.add_alarm(alarm("at https://me:hunter22@example.org with wb-0123456789abcdef"))
    words = {"WANDB_API_KEY": "other-secret-1", "URL": "https://me:hunter22@example.org"}
    (attempt.folder / "environment.json").write_text(json.dumps(words))
    write_samples(record, 1, [{"input": "q", "output": "wb-0123456789abcdef", "score": 1.0}])
    page = page_of(root)
    attempt.close("done", 0)
    for secret in ("wb-0123456789abcdef", "other-secret-1", "hunter22"):
        assert secret not in page
    assert "***" in page


def test_the_policy_allows_the_two_scripts_and_nothing_else(root: Path) -> None:
    made_attempt(made_record(root), [1])
    page = page_of(root)
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert found is not None
    policy = found[1].replace("&#x27;", "'")
    assert "unsafe" not in policy and "http" not in policy and policy.startswith("default-src 'none'")
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digests = [
        f"'sha256-{base64.b64encode(hashlib.sha256(x.encode()).digest()).decode()}'"
        for x in (*scripts, *styles)
    ]
    assert re.findall(r"'sha256-[^']*'", policy) == digests
    assert not re.search(r"(?:src|href)=\"(?!#)", page)


def test_against_another_run_what_differs_is_listed(root: Path) -> None:
    made_attempt(made_record(root), [1, 2])
    facts = {**FACTS, "overrides": ["steps=9"], "tree": "0" * 40}
    made_attempt(
        made_record(root, "old", facts), [1, 2, 3], environment={**ENVIRONMENT, "HCCL_BUFFSIZE": "500"}
    )
    text = parsed(page_of(root, against=(root, "old"))).text
    for found in (
        "Against old",
        "old: mean reward",
        "environment: HCCL_BUFFSIZE",
        "500",
        "steps=9",
        "0" * 40,
    ):
        assert found in text


def test_against_a_run_of_the_same_name_both_are_named_by_what_differs(tmp_path: Path) -> None:
    for place in ("today", "newest"):
        made_attempt(made_record(tmp_path / place / "runs"), [1, 2])
    root = tmp_path / "today/runs"
    page = parsed(page_of(root, against=(tmp_path / "newest/runs", "demo"))).text
    for found in ("Against demo (newest)", "demo (newest): mean reward", f"{tmp_path}/newest/runs/demo"):
        assert found in page
    assert re.search(r"demo \(today\)\s*demo \(newest\)", page)
    assert "Against demo" in parsed(page_of(root, against=(root, "demo"))).text


def test_against_another_stack_the_pins_differ(root: Path) -> None:
    for name in ("quickstart", "today"):
        record = made_record(root, name)
        (record.folder / "lock.json").write_bytes((ROOT / "manifests" / f"{name}.lock.json").read_bytes())
        made_attempt(record, [1])
    text = parsed(page_of(root, "quickstart", against=(root, "today"))).text
    for found in ("verl: pin", "verl==0.5.0", "mbridge: pin"):
        assert found in text
    assert "not compared" not in text


def test_published_figures_stand_beside_the_run(root: Path) -> None:
    facts = {**FACTS, "recipe_files": {"bundled:deepseek-r1-zero-256die.yaml": "0" * 64}}
    made_attempt(made_record(root, facts=facts), range(1, 30))
    text = parsed(page_of(root, published=True)).text
    for found in ("1,338.3", "125.7", "62.85", "step 27", "published: per card", "lines 23-32"):
        assert found in text
    made_attempt(made_record(root, "other"), [1])
    with pytest.raises(UsageError, match="No figures are published"):
        page_of(root, "other", published=True)


def test_ids_are_whole(root: Path) -> None:
    made_attempt(made_record(root), [1])
    page = page_of(root)
    for found in (PIN, HEAD, SHA):
        assert f"<code>{found}</code>" in page


def test_uplot_is_as_its_authors_published_it() -> None:
    """The files of the package uplot 1.6.32 on npm: dist/uPlot.iife.min.js, dist/uPlot.min.css, LICENSE."""
    folder = ROOT / "npu_rl" / "training" / "report" / "assets"
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("uplot*")}
    assert digests == UPLOT


def test_a_metric_that_is_never_finite_is_named_in_place_of_its_chart(root: Path) -> None:
    attempt = made_attempt(made_record(root), ())
    with MetricsWriter(attempt.metrics) as writer:
        for step in (1, 2):
            writer.write(step, {"critic/score/mean": 0.5, "actor/grad_norm": math.nan})
    text = parsed(page_of(root)).text
    assert "NaN or infinite, and not drawn, in step 1, 2." in text


def test_the_published_row_of_a_recipe_that_is_extended(root: Path) -> None:
    files = {"my-r1.yaml": "0" * 64, "bundled:deepseek-r1-zero-256die.yaml": "1" * 64}
    facts = {**FACTS, "recipe_path": "/home/you/my-r1.yaml", "recipe_files": files}
    made_attempt(made_record(root, facts=facts), range(1, 30))
    output = root.parent / "report.html"
    write_report(ReportRequest((root, "demo"), output, published=True))
    assert "From the recipe deepseek-r1-zero-256die, which my-r1 extends" in read(output.read_text()).text


def test_overruled_rules_and_lost_nodes_are_named(root: Path) -> None:
    record = made_record(root, facts={**FACTS, "overruled": {"kl-free": "an ablation"}})
    attempt = made_attempt(record, range(1, 3), end="failed")
    attempt.lost_nodes.write_text(
        json.dumps([{"host": "node3", "ip": "10.99.7.3", "reason": "no heartbeat"}])
    )
    text = parsed(page_of(root)).text
    assert "overruled rule kl-free" in text and "an ablation" in text
    assert "1 node left the Ray cluster" in text and "node3 (10.99.7.3): no heartbeat" in text


def node(host: str, **more: object) -> dict[str, object]:
    stack = {
        "driver": "25.2.0",
        "cann": "8.2.RC1",
        "nnal": None,
        "torch": "2.5.1",
        "torch-npu": "2.5.1.post1",
    }
    known = {"host": host, "ip": "10.0.0.1", "stack": {**stack, "control_missing": [], "nofile": 1024}}
    return {**known, "environment": {"VLLM_LOGGING_LEVEL": "WARN", "HCCL_KEY": "hunter2-hunter2"}, **more}


def test_the_stack_and_the_variables_of_each_node_are_found(root: Path) -> None:
    parts = {"cann": {"id": "72721d07a951", "value": {"cann": "8.2.RC1", "nnal": None}}}
    facts = {**FACTS, "environment": {"id": f"env:{'5' * 64}", "parts": parts}}
    attempt = made_attempt(made_record(root, facts=facts), range(1, 3))
    other = node("n3", stack={"cann": "8.1.RC1"}, environment={}, workspace_environment={"id": "env:other"})
    rows = [node("n1"), node("n2"), other, {"host": "n4", "stack": ["odd"], "environment": 3}]
    attempt.nodes.write_text(json.dumps({"nodes": rows}))
    text = parsed(page_of(root)).text
    for found in (
        *(
            "driver 25.2.0, CANN 8.2.RC1, torch 2.5.1, torch-npu 2.5.1.post1",
            "nnal: not found",
            "nofile: 1024",
        ),
        *("as on n1", "CANN 8.1.RC1", "environment: env:other", "VLLM_LOGGING_LEVEL=WARN", "not reported"),
        *(f"env:{'5' * 64}", "72721d07a951", '{"cann": "8.2.RC1", "nnal": null}'),
    ):
        assert found in text, found
    assert "hunter2" not in text


def test_the_reasons_of_lost_nodes_are_masked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "hunter2-hunter2")
    attempt = made_attempt(
        made_record(root), range(1, 3), environment={**ENVIRONMENT, "MY_API_KEY": "hunter2-hunter2"}
    )
    row = {"host": "node3", "ip": "10.99.7.3", "reason": "no heartbeat of hunter2-hunter2"}
    (attempt.folder / "lost-nodes.json").write_text(json.dumps([row]))
    page = page_of(root)
    assert "no heartbeat of ***" in page and "hunter2" not in page


def test_the_figures_that_verl_names_after_the_actor_stand_beside_the_published_ones(root: Path) -> None:
    record = made_record(
        root, facts={**FACTS, "recipe_files": {"bundled:newest-gspo-qwen3-30b.yaml": "0" * 64}}
    )
    attempt = made_attempt(record, ())
    with MetricsWriter(attempt.metrics) as writer:
        data = {
            "actor/perf/max_memory_allocated_gb": 47.25,
            "timing_s/step": 8.0,
            "timing_s/update_weights": 2.0,
        }
        writer.write(1, data)
    page = parsed(page_of(root)).text
    assert re.search(r"peak memory of a device, GiB\s*49\.14\s*47\.25", page)
    assert re.search(r"update_weights\s*2\s*2\s*25 %|update_weights\s*2\s*2\s*25\.0 %", page)


def test_a_failure_is_explained_at_the_head(root: Path) -> None:
    attempt = made_attempt(made_record(root), range(1, 3), end="failed")
    attempt.driver_log.write_text(
        "Traceback (most recent call last):\n  File 'a'\nValueError: <b>batch sizes</b> differ\n"
    )
    text = parsed(page_of(root)).text
    assert "Why it failed: ValueError: <b>batch sizes</b> differ" in text


def test_a_refused_cluster_has_reported(root: Path) -> None:
    attempt = made_attempt(made_record(root), (), end="failed")
    refused = {
        "what": "The Ray at a:1 lacks CPUs",
        "where": "a:1",
        "why": "It has 1.",
        "hint": "ray start --num-cpus=9",
    }
    attempt.nodes.write_text(json.dumps({"refused": refused}))
    text = parsed(page_of(root)).text
    assert "The Ray at a:1 lacks CPUs. It has 1." in text and "ray start --num-cpus=9" in text
    assert "nodes.json" not in text
