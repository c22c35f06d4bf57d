"""The page in Chromium without a network: nothing but the file is requested, nothing complains, nothing is run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from npu_rl.training.report.write_report import ReportRequest, write_report
from tests.report.browser import CHROMIUM, Browser
from tests.report.made_run import FACTS, RECIPE, alarm, made_attempt, made_record, write_samples

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

SIZES = "[document.documentElement.scrollWidth, innerWidth]"
# Elements that could be scrolled sideways, or whose end is cut off; uPlot's own are absolute.
SIDEWAYS = """[...document.querySelectorAll("body *:not(.uplot *)")]
    .filter(one => one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0
        && getComputedStyle(one).overflowX !== "visible")
    .map(one => one.outerHTML.slice(0, 200))"""
LONG_NAME = "w" * 100
HOSTILE = (
    "</script><script>document.title = 'run'</script><img src=http://localhost/x onerror=\"document.title = 'run'\">"
    "<svg onload=\"document.title = 'run'\"></svg><style>@import 'http://localhost/y'</style>\u202eevil\u2066"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of 1,000 steps of twenty metrics with alarms, hostile samples and another run."""
    root = tmp_path_factory.mktemp("large") / "runs"
    record = made_record(
        root, facts={**FACTS, "recipe_files": {"bundled:deepseek-r1-zero-256die.yaml": "0" * 64}}
    )
    alarms = [alarm(f"Step {step}: {HOSTILE}") for step in (10, 500)]
    made_attempt(record, range(1, 700), alarms=alarms, end="killed", recipe=f"{RECIPE}# {'wide' * 5000}\n")
    made_attempt(record, range(600, 1001), environment={"NPU_RL_SEED": "w" * 5000})
    for step in range(1, 1001, 100):
        rows = [
            {"input": HOSTILE, "output": text, "score": place / 3}
            for place, text in enumerate((HOSTILE, "w" * 10**6))
        ]
        write_samples(record, step, [*rows, b'{"input": "\xff", "output": "\xfe", "score": 0.5}'])
    made_attempt(made_record(root, LONG_NAME), range(1, 1001))
    output = root.parent / "report.html"
    write_report(ReportRequest((root, "demo"), output, (root, LONG_NAME)))
    return output


@pytest.mark.parametrize("dark", [False, True], ids=("light", "dark"))
@pytest.mark.parametrize("width", [390, 1440])
def test_it_opens_alone(browser: Browser, large: Path, width: int, dark: bool) -> None:
    assert large.stat().st_size <= 3_000_000
    browser.open(large, width, dark=dark)
    assert browser.requests() == [large.as_uri()]
    assert browser.complaints() == []
    assert browser.ask("document.title") == "Run demo"
    assert browser.ask(SIZES)[0] <= width  # a page that is too wide widens innerWidth, too
    assert browser.ask(SIDEWAYS) == []
    browser.ask("for (const one of document.querySelectorAll('details')) one.open = true")
    assert browser.ask(SIZES)[0] <= width
    charts = browser.ask("document.querySelectorAll('canvas').length")
    assert charts == browser.ask("document.querySelectorAll('figure svg.chart').length") >= 10
    paper = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(18, 22, 28)") is dark


def test_values_are_shown_under_the_pointer(browser: Browser, large: Path) -> None:
    browser.open(large, 1440)
    legend = "[...document.querySelectorAll('#chart-reward .u-value')].map(one => one.textContent)"
    box = browser.ask(
        "(() => { const one = document.querySelector('#chart-reward .u-over'); one.scrollIntoView();"
        " const box = one.getBoundingClientRect(); return [box.left, box.top, box.width, box.height] })()"
    )
    before = browser.ask(legend)
    assert before[0] == "1000"  # the last step, while the pointer is elsewhere
    place = {"x": box[0] + box[2] / 2, "y": box[1] + box[3] / 2}
    browser.call("Input.dispatchMouseEvent", {"type": "mouseMoved", **place})
    browser.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
    under = browser.ask(legend)
    assert 400 < int(under[0]) < 600
    assert under[1] != before[1]
    assert browser.ask("document.querySelector('#chart-entropy .u-value').textContent") == under[0]
    borders = "[...document.querySelectorAll('#chart-entropy .u-marker')].map(one => one.style.borderTop)"
    ours, theirs = browser.ask(borders)[1:]
    assert (ours.replace("solid", "dashed"), "solid" in ours) == (theirs, True)  # of one colour


def test_without_scripts_the_charts_and_all_text_are_there(browser: Browser, large: Path) -> None:
    browser.open(large, 1440, scripts=False)
    assert browser.complaints() == []
    shown = browser.call("Page.captureScreenshot", {"format": "png"})
    assert shown["data"]
    drawn = browser.call("DOM.getDocument", {"depth": 0})["root"]["nodeId"]
    found = browser.call("DOM.querySelectorAll", {"nodeId": drawn, "selector": "figure svg.chart path.line"})
    assert len(found["nodeIds"]) >= 20
    box = browser.call("DOM.getBoxModel", {"nodeId": found["nodeIds"][0]})["model"]
    assert box["width"] > 300


def test_it_prints(browser: Browser, large: Path) -> None:
    browser.open(large, 1440)
    assert browser.pdf().startswith(b"%PDF")
    assert browser.complaints() == []


def test_the_policy_holds_where_the_escaping_would_fail(
    browser: Browser, large: Path, tmp_path: Path
) -> None:
    """Markup in a page that should never have any: the policy alone keeps it from running and from asking."""
    page = large.read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    broken.write_text(page.replace("<main>", f"<main>{HOSTILE}", 1), encoding="utf-8")
    browser.open(broken, 1440)
    assert browser.ask("document.title") == "Run demo"
    failed = [event["params"] for event in browser.events if event["method"] == "Network.loadingFailed"]
    assert [one["blockedReason"] for one in failed] == ["csp"] * (len(browser.requests()) - 1)
    assert any("Content Security Policy" in one for one in browser.complaints())
