"""The page of a report: one HTML file without external requests.

Jinja2 escapes whatever the template prints; before that, secrets are masked, and control and invisible characters are
written as escapes. The page's policy allows no request and no script but the two whose digests it names.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import ChainableUndefined, Environment, FileSystemLoader
from markupsafe import Markup

import npu_rl
from npu_rl.common.masking import Secrets, masked_data, masked_text
from npu_rl.common.printable import printable
from npu_rl.training.browse.attempt_changes import attempt_changes
from npu_rl.training.browse.run_comparison import RunComparison
from npu_rl.training.browse.run_page import RunPage
from npu_rl.training.monitor.screen import clock
from npu_rl.training.record.attempt import now
from npu_rl.training.record.lost_nodes import lost_nodes
from npu_rl.training.record.recorded_run import RecordedRun
from npu_rl.training.report.metric_panels import MetricPanel, report_panels
from npu_rl.training.report.published_rows import published_rows
from npu_rl.training.report.report_samples import sampled_steps

FIRST_LINE = b"<!doctype html><!-- written by npu-rl report -->"
_ASSETS = Path(__file__).with_name("assets")
_SCRIPTS = ("uplot-1.6.32.min.js", "report.js")
_STYLES = ("uplot-1.6.32.min.css", "report.css")


def report_page(run: RecordedRun, other: RecordedRun | None = None, *, reload: int | None = None) -> bytes:
    """Return the page of a run.

    Args:
        other: Run to compare with.
        reload: Seconds after which the page loads itself again, while the run goes on.

    Raises:
        NpuRlError: If a part of the record can't be read.
    """
    page, attempts = RunPage(run), attempt_changes(run)
    other_name = "" if other is None else other.name if other.name != run.name else str(other.folder)
    steps, panels = report_panels(run, other, other_name)
    published = published_rows(run.recipe.name, run.recipe.extended)
    kept = {one.attempt.number: one for one in attempts}
    text = (
        _environment(Secrets.of(os.environ))
        .get_template("report.html.j2")
        .render(
            run=run,
            page=page,
            reload=reload,
            version=npu_rl.__version__,
            first_line=FIRST_LINE.decode(),
            panels=panels,
            steps=steps,
            series=lambda panel: _drawn(panel, steps),
            marks=sorted({one.step for one in run.alarms if one.step and kept[one.attempt].keeps(one.step)}),
            figures=_figures(panels, steps, other_name, published),
            attempts=attempts,
            samples=sampled_steps(run),
            published=published,
            other=other,
            other_name=other_name,
            comparison=None if other is None else RunComparison(run, other),
        )
    )
    return text.encode("utf-8", "backslashreplace")


def _environment(secrets: Secrets) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        finalize=_finalized(secrets),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=ChainableUndefined,
    )
    environment.globals |= {
        "assets": {"scripts": [*map(_asset, _SCRIPTS)], "styles": [*map(_asset, _STYLES)]},
        "policy": _policy(),
        "lost_nodes": lost_nodes,
        "clock": clock,
    }
    filters: dict[str, Callable[..., object]] = {
        "masked": lambda data: masked_data(data, known=secrets),
        "time": now,
        "as_table": _as_table,
        "alike": _alike,
    }
    environment.filters |= filters
    return environment


def _finalized(secrets: Secrets) -> Callable[[object], object]:
    """Return what each printed value goes through before it is escaped."""

    def shown(value: object) -> object:
        if isinstance(value, Markup):
            return value
        if value is None:
            return "-"
        if isinstance(value, float):
            return number_text(value)
        return printable(secrets.mask(masked_text(str(value))))

    return shown


def number_text(value: float) -> str:
    """Format a number with four significant digits."""
    if 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.1f}"
    return f"{value:.4g}"


def _drawn(panel: MetricPanel, steps: Sequence[int]) -> list[dict[str, Any]]:
    limits = [
        {"name": name, "limit": True, "values": [value] * len(steps)} for name, value in panel.limits.items()
    ]
    return [*(one.data() for one in panel.series), *limits]


def _figures(
    panels: Iterable[MetricPanel], steps: list[int], other_name: str, published: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[list[Any]]]:
    """Return the table of each metric's first value and recent mean, beside those of another run and published ones."""
    heads = ["metric", "first step", "last 10 steps"]
    heads += [f"{other_name}, last 10 steps"] if other_name else []
    for row in published:
        heads += [f"step {row['step']}", "published"] if row["step"] else ["published"]
    rows = []
    for panel in panels:
        theirs = {one.colour: one.recent for one in panel.series if one.other}
        for one in (one for one in panel.series if not one.other):
            cells: list[Any] = [f"{panel.title}: {one.name}", one.first, one.recent]
            cells += [theirs.get(one.colour)] if other_name else []
            for row in published:
                at_step = dict(zip(steps, one.values, strict=True)).get(row["step"])
                value = next((row["values"][key] for key in one.keys if key in row["values"]), None)
                cells += [at_step, value] if row["step"] else [value]
            rows.append(cells)
    return heads, rows


def _as_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return mappings as a table: its heads, and the cells of each row."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[row.get(head, "") for head in heads] for row in rows]
    return heads, [
        [" ".join(map(str, one)) if isinstance(one, list) else one for one in row] for row in cells
    ]


def _alike(nodes: Iterable[Mapping[str, Any]]) -> list[tuple[list[str], dict[str, Any]]]:
    """Return groups of nodes with the same facts, each with its hosts."""
    groups: dict[str, tuple[list[str], dict[str, Any]]] = {}
    for node in nodes:
        facts = {key: value for key, value in node.items() if key not in ("host", "ip", "node")}
        hosts, _ = groups.setdefault(json.dumps(facts, sort_keys=True), ([], facts))
        hosts.append(f"{node.get('host', '?')} ({node.get('ip', '?')})")
    return list(groups.values())


@cache
def _policy() -> str:
    nowhere = "default-src 'none'; base-uri 'none'; form-action 'none'"
    scripts, styles = (" ".join(map(_digest, names)) for names in (_SCRIPTS, _STYLES))
    return f"{nowhere}; script-src {scripts}; style-src {styles}"


def _digest(name: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(_asset(name).encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> Markup:
    """Return a script or style of the package, which nothing escapes."""
    return Markup((_ASSETS / name).read_text(encoding="utf-8"))
