"""The page of a report: one HTML file without external requests.

Its policy allows no request and no script but the two whose digests it names: uPlot's and ours.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import npu_rl
from npu_rl.training.report.comparison_sections import (
    against_section,
    distinct_names,
    published_section,
)
from npu_rl.training.report.gather_report import GatheredRun
from npu_rl.training.report.markup import Markup, joined, tag
from npu_rl.training.report.metric_panels import MetricPanel, report_panels
from npu_rl.training.report.node_section import node_section
from npu_rl.training.report.provenance_section import provenance_section
from npu_rl.training.report.published_rows import PublishedRow
from npu_rl.training.report.report_sections import (
    alarm_section,
    alarm_steps,
    attempt_section,
    chart_section,
    head_section,
    phase_section,
    sample_section,
    step_section,
)

_ASSETS = Path(__file__).with_name("assets")
_SCRIPTS = ("uplot-1.6.32.min.js", "report.js")
_STYLES = ("uplot-1.6.32.min.css", "report.css")
_NAVIGATION = (
    ("alarms", "Alarms"),
    ("charts", "Charts"),
    ("published", "Published figures"),
    ("phases", "Time per phase"),
    ("steps", "Steps"),
    ("samples", "Samples"),
    ("attempts", "Attempts"),
    ("nodes", "Nodes"),
    ("provenance", "Provenance"),
)


def report_page(
    run: GatheredRun,
    written: str,
    *,
    other: GatheredRun | None = None,
    published: PublishedRow | None = None,
    reload: int | None = None,
) -> bytes:
    """Return the page of a run.

    Args:
        written: Time of the report, as text.
        other: Run to compare with.
        published: Row to draw across the charts.
        reload: Seconds after which the page loads itself again, while the run goes on.
    """
    marks = alarm_steps(run)
    other_name = distinct_names(run, other)[1] if other else ""
    panels = report_panels(
        run.points,
        run.dies_per_card,
        other=None if other is None else (other_name, other.points, other.dies_per_card),
        published=published.values if published else None,
    )
    sections = [
        alarm_section(run),
        chart_section(panels, marks),
        *([against_section(run, other)] if other else []),
        published_section(run),
        phase_section(run),
        step_section(run),
        sample_section(run),
        attempt_section(run),
        node_section(run),
        provenance_section(run),
    ]
    names = [*_NAVIGATION[:2], *([("against", f"Against {other_name}")] if other else []), *_NAVIGATION[2:]]
    navigation = tag("nav", *(tag("a", title, href=f"#{id}") for id, title in names))
    body = tag(
        "body",
        head_section(run, written),
        navigation,
        tag("main", *sections),
        tag("footer", f"Written by npu-rl {npu_rl.__version__}. Charts by uPlot, MIT licence."),
        _data(panels, marks),
        *(_inline("script", name) for name in _SCRIPTS),
    )
    page = joined([Markup("<!doctype html>\n"), tag("html", _head(run.name, reload), body, lang="en")])
    return page.encode("utf-8", "backslashreplace")


def _head(name: str, reload: int | None) -> Markup:
    again = [tag("meta", http_equiv="refresh", content=str(reload))] if reload else []
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy()),
        tag("meta", name_="referrer", content="no-referrer"),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        *again,
        tag("title", f"Run {name}"),
        *(_inline("style", style) for style in _STYLES),
    )


@cache
def _policy() -> str:
    scripts = " ".join(_digest(name) for name in _SCRIPTS)
    styles = " ".join(_digest(name) for name in _STYLES)
    nowhere = "default-src 'none'; base-uri 'none'; form-action 'none'"
    return f"{nowhere}; script-src {scripts}; style-src {styles}"


def _digest(name: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(_asset(name).encode()).digest()).decode()}'"


def _inline(kind: str, name: str) -> Markup:
    """Return a script or style of the package in its element. Only the package's own text may be used."""
    return Markup(f"<{kind}>{_asset(name)}</{kind}>")


@cache
def _asset(name: str) -> str:
    text = (_ASSETS / name).read_text(encoding="utf-8")
    if "</" in text or "\r" in text:  # it would end its element, or be hashed as other text
        raise ValueError(f"{name} can't be put into a page")
    return text


def _data(panels: Sequence[MetricPanel], marks: Sequence[int]) -> Markup:
    """Return the data for the script, as JSON that is safe inside HTML."""
    drawn = [
        {
            "id": panel.id,
            "steps": panel.steps,
            "series": [
                *(
                    {"name": one.name, "other": one.other, "colour": one.colour, "values": one.values}
                    for one in panel.series
                ),
                *(
                    {"name": name, "limit": True, "values": [value] * len(panel.steps)}
                    for name, value in panel.limits
                ),
            ],
            "marks": [step for step in marks if panel.steps[0] <= step <= panel.steps[-1]],
        }
        for panel in panels
        if panel.series
    ]
    text = json.dumps(drawn, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json" id="data">{text}</script>')
