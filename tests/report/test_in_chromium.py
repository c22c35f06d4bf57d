"""The page in Chromium without a network: nothing but the file is requested, nothing complains, nothing is run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from npu_rl.training.report.write_report import ReportRequest, write_report
from tests.report.browser import CHROMIUM, Browser
from tests.report.made_run import FACTS, HOSTILE, RECIPE, alarm, made_attempt, made_record, write_samples
from tests.training.processes import wait_for

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

# Elements that could be scrolled sideways, or whose end is cut off; uPlot's own are absolute.
SIDEWAYS = """[...document.querySelectorAll("body *:not(.uplot *)")]
    .filter(one => one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0
        && getComputedStyle(one).overflowX !== "visible")
    .map(one => one.outerHTML.slice(0, 200))"""
WIDTH = "document.documentElement.scrollWidth"
LONG_NAME = "w" * 100
HOSTILE_PAGE = (
    f"{HOSTILE}--><img src=http://localhost/x onerror=\"document.title = 'x'\">"
    "<svg onload=\"document.title = 'x'\"></svg><style>@import 'http://localhost/y'</style>"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of 1,000 steps of twenty metrics with alarms, hostile samples and another run."""
    root = tmp_path_factory.mktemp("large") / "runs"
    files = {"bundled:deepseek-r1-zero-256die.yaml": "0" * 64}
    record = made_record(root, facts={**FACTS, "recipe_files": files, "goal": 0.9})
    alarms = [alarm(f"Step {step}: {HOSTILE_PAGE}") for step in (10, 500)]
    made_attempt(record, range(1, 700), alarms=alarms, end="failed", recipe=f"{RECIPE}# {'wide' * 5000}\n")
    made_attempt(record, range(600, 1001), environment={"NPU_RL_SEED": "w" * 5000})
    for step in range(1, 1001, 100):
        rows = [{"input": HOSTILE_PAGE, "output": text, "score": 0.5} for text in (HOSTILE_PAGE, "w" * 10**6)]
        write_samples(record, step, [*rows, b'{"input": "\xff", "output": "\xfe", "score": 0.5}'])
    made_attempt(made_record(root, LONG_NAME), range(1, 1001))
    output = root.parent / "report.html"
    write_report(ReportRequest((root, "demo"), output, (root, LONG_NAME)))
    return output


@pytest.mark.parametrize("dark", [False, True], ids=("light", "dark"))
@pytest.mark.parametrize("width", [390, 800, 1400])
def test_it_opens_alone(browser: Browser, large: Path, width: int, dark: bool) -> None:
    assert large.stat().st_size <= 3_000_000
    browser.open(large, width, dark=dark)
    assert browser.requests() == [large.as_uri()]
    assert browser.complaints() == []
    assert browser.ask("document.title") == "Run demo"
    assert browser.ask(WIDTH) <= width  # a page that is too wide widens innerWidth, too
    assert browser.ask(SIDEWAYS) == []
    browser.ask("for (const one of document.querySelectorAll('details')) one.open = true")
    assert browser.ask(WIDTH) <= width
    assert browser.ask("document.querySelectorAll('canvas').length") == 11
    assert browser.ask("document.querySelectorAll('nav a').length") == 8
    narrowest = "Math.min(...[...document.querySelectorAll('#alarms dd')].map(one => one.clientWidth))"
    assert browser.ask(narrowest) > min(width, 800) / 2  # an alarm's words are not a column of letters
    paper = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(18, 22, 28)") is dark


def test_the_steps_are_downloaded_as_csv(browser: Browser, large: Path, tmp_path: Path) -> None:
    browser.open(large, 390)
    browser.call("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    browser.ask("document.getElementById('csv').click()")
    path = tmp_path / "demo.csv"
    wait_for(path.exists)
    head, *rows = path.read_text().splitlines()
    assert head.startswith("step,critic/score/mean,response_length/mean,") and len(rows) == 1000
    assert rows[41].split(",")[0] == "42" and float(rows[41].split(",")[1]) == pytest.approx(
        -0.057895, abs=1e-6
    )
    assert {row.count(",") for row in rows} == {head.count(",")}


def test_the_policy_holds_where_the_escaping_would_fail(
    browser: Browser, large: Path, tmp_path: Path
) -> None:
    """Markup in a page that should never have any: the policy alone keeps it from running and from asking."""
    broken = tmp_path / "broken.html"
    page = large.read_text(encoding="utf-8")
    broken.write_text(page.replace("<main>", f"<main>{HOSTILE_PAGE}", 1), encoding="utf-8")
    browser.open(broken, 1400)
    assert browser.ask("document.title") == "Run demo"
    failed = [event["params"] for event in browser.events if event["method"] == "Network.loadingFailed"]
    assert [one["blockedReason"] for one in failed] == ["csp"] * (len(browser.requests()) - 1)
    assert any("Content Security Policy" in one for one in browser.complaints())
