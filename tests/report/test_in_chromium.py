"""The page in Chromium without a network: nothing but the file is requested, nothing complains, nothing is run."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from npu_rl.training.report.write_report import ReportRequest, write_report
from tests.report.made_run import FACTS, HOSTILE, RECIPE, alarm, made_attempt, made_record, write_samples

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

# A page with the report in a frame of some width, and a script that writes what it finds there.
FRAME = """<!doctype html><iframe id="frame" width="WIDTH" height="900" src="PAGE"></iframe><script id="found"
 type="text/plain"></script><script>document.getElementById("frame").onload = async () => {
    const view = document.getElementById("frame").contentWindow, page = view.document
    await new Promise(done => setTimeout(done, 300))
    document.getElementById("found").textContent = "=>" + btoa(encodeURIComponent(JSON.stringify(await SCRIPT))) + "<="
}</script>"""
LOOK = """(async () => {
    // Elements that could be scrolled sideways, or whose end is cut off; uPlot's own are absolute.
    const sideways = [...page.querySelectorAll("body *:not(.uplot *)")].filter(one =>
        one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0
        && view.getComputedStyle(one).overflowX !== "visible")
    const width = page.documentElement.scrollWidth
    for (const one of page.querySelectorAll("details")) one.open = true
    return {
        title: page.title, width, sideways: sideways.map(one => one.outerHTML.slice(0, 200)),
        open: page.documentElement.scrollWidth, charts: page.querySelectorAll("canvas").length,
        parts: page.querySelectorAll("nav a").length, paper: view.getComputedStyle(page.body).backgroundColor,
        alarms: Math.min(...[...page.querySelectorAll("#alarms dd")].map(one => one.clientWidth)),
        csv: await (await fetch(page.getElementById("csv").href)).text(),
    }
})()"""
LONG_NAME = "w" * 100
HOSTILE_PAGE = (
    f"{HOSTILE}--><img src=http://localhost/x onerror=\"document.title = 'x'\">"
    "<svg onload=\"document.title = 'x'\"></svg><style>@import 'http://localhost/y'</style>"
)


def seen(folder: Path, page: Path, script: str, width: int, *, dark: bool = False) -> tuple[Any, list[str]]:
    """Return what a script finds in a page, and the lines of the console, which has each request that failed."""
    frame = folder / "frame.html"
    text = FRAME.replace("WIDTH", str(width)).replace("PAGE", page.as_uri()).replace("SCRIPT", script)
    frame.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [
            *(["unshare", "-n"] if os.getuid() == 0 and shutil.which("unshare") else []),
            *(str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--no-first-run", "--allow-file-access-from-files", "--virtual-time-budget=10000"),
            *("--enable-logging=stderr", f"--user-data-dir={folder}/chromium", "--dump-dom"),
            *(f"--blink-settings=preferredColorScheme={0 if dark else 1}", str(frame)),
        ],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = re.search("=>([A-Za-z0-9+/=]*)<=", done.stdout)
    assert found is not None, done.stderr
    # Of the report, and not of Chromium's own pages, which complain about a busy machine.
    console = [
        line for line in done.stderr.splitlines() if "CONSOLE" in line and "source: chrome:" not in line
    ]
    return json.loads(unquote(base64.b64decode(found[1]).decode())), console


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


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (800, False), (1400, True)])
def test_it_opens_alone(large: Path, tmp_path: Path, width: int, dark: bool) -> None:
    assert large.stat().st_size <= 3_000_000
    found, console = seen(tmp_path, large, LOOK, width, dark=dark)
    assert console == []
    assert (found["title"], found["charts"], found["parts"]) == ("Run demo", 11, 8)
    assert found["width"] <= width and found["open"] <= width and found["sideways"] == []
    assert found["alarms"] > min(width, 800) / 2  # an alarm's words are not a column of letters
    assert (found["paper"] == "rgb(18, 22, 28)") is dark
    head, *rows = found["csv"].splitlines()
    assert head.startswith("step,critic/score/mean,response_length/mean,") and len(rows) == 1000
    step, reward, *_ = rows[41].split(",")
    assert step == "42" and float(reward) == pytest.approx(-0.057895, abs=1e-6)
    assert {row.count(",") for row in rows} == {head.count(",")}


def test_the_policy_holds_where_the_escaping_would_fail(large: Path, tmp_path: Path) -> None:
    """Markup in a page that should never have any: the policy alone keeps it from running and from asking."""
    broken = tmp_path / "broken.html"
    page = large.read_text(encoding="utf-8")
    broken.write_text(page.replace("<main>", f"<main>{HOSTILE_PAGE}", 1), encoding="utf-8")
    title, console = seen(tmp_path, broken, "page.title", 1400)
    assert title == "Run demo" and len(console) >= 4
    assert [line for line in console if "Content Security Policy" not in line] == []
