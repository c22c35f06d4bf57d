"""The report's section on nodes: their stack, and their problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_rl.common.printable import counted
from npu_rl.training.record.lost_nodes import lost_nodes
from npu_rl.training.report.gather_report import GatheredRun, ReportedAttempt
from npu_rl.training.report.markup import Markup, folded, joined, section, table, tag
from npu_rl.training.report.provenance_section import id_code, plain_text

_FOLDED = ("packages", "host's stack", "own variables")
_LABELS = {
    "driver": "driver",
    "firmware": "firmware",
    "cann": "CANN",
    "kernels": "kernels",
    "nnal": "NNAL",
    "gpu_driver": "GPU driver",
    "cuda": "CUDA",
    "torch": "torch",
    "torch-npu": "torch-npu",
    "image": "image",
}


def node_section(run: GatheredRun) -> Markup:
    """Return the section on the nodes of each attempt."""
    parts = [_nodes(run, attempt) for attempt in run.attempts]
    return section("Nodes", "nodes", *(parts or [tag("p", "No attempt was begun.", class_="soft")]))


def _nodes(run: GatheredRun, attempt: ReportedAttempt) -> Markup:
    host = attempt.host
    title = tag("h3", f"Attempt {attempt.number}: {counted(len(attempt.nodes), 'node')}")
    lost = [run.masked(one) for one in lost_nodes(attempt.recorded.folder)]
    if lost:
        left = f"{counted(len(lost), 'node')} left the Ray cluster:\n" + "\n".join(lost)
        title = joined([title, tag("pre", left, class_="bad")])
    launched = tag("p", f"train ran on {_host_line(host)}") if host else tag("p", "host.json is missing.")
    if not attempt.nodes:
        return joined([title, launched, tag("p", "No node has reported.", class_="soft")])
    rows: list[tuple[str | Markup, ...]] = []
    first = attempt.nodes[0]
    for node in attempt.nodes:
        problems = [
            plain_text(one)
            for key in ("problems", "missing", "differ", "strays")
            for one in _list_at(node, key)
        ]
        rows.append(
            (
                plain_text(node.get("host", "?")),
                plain_text(node.get("ip", "")),
                id_code(node.get("node", "")),
                plain_text(node.get("python", "")),
                id_code(node.get("tree", "")),
                _packages_of(node, first),
                _stack_of(node, first),
                _variables_of(node, first),
                tag("span", "\n".join(problems), class_="bad") if problems else "none",
            )
        )
    heads = ("host", "address", "Ray's id", "Python", "code tree", *_FOLDED, "problems")
    return joined([title, launched, table(heads, rows)])


def _host_line(host: Mapping[str, Any]) -> str:
    shown = [
        f"{label}{plain_text(host[key])}"
        for key, label in (
            ("hostname", ""),
            ("distribution", ""),
            ("kernel", "kernel "),
            ("platform", ""),
            ("cpus", "CPUs: "),
            ("npus", "NPUs: "),
            ("gpus", "GPUs: "),
        )
        if host.get(key) is not None
    ]
    memory = host.get("memory")
    if isinstance(memory, int):
        shown.append(f"{memory / 1e9:.0f} GB of memory")
    return ", ".join(shown)


def _packages_of(node: Mapping[str, Any], first: Mapping[str, Any]) -> str | Markup:
    packages = node.get("packages")
    if not isinstance(packages, Mapping):
        return "not reported"
    if node is not first and packages == first.get("packages"):
        return f"as on {plain_text(first.get('host'))}"
    listed = "\n".join(f"{plain_text(name)} {plain_text(version)}" for name, version in packages.items())
    return folded(counted(len(packages), "package"), tag("pre", listed))


def _stack_of(node: Mapping[str, Any], first: Mapping[str, Any]) -> str | Markup:
    """Return the versions of a node's driver, CANN and the like, with its other facts folded below them."""
    stack = node.get("stack")
    environment = node.get("workspace_environment")
    known = {"environment": environment.get("id")} if isinstance(environment, Mapping) else {}
    facts = {**(stack if isinstance(stack, Mapping) else {}), **known}
    if not facts:
        return "not reported"
    shown = [f"{_LABELS[name]} {plain_text(facts[name])}" for name in _LABELS if facts.get(name) is not None]
    if node is not first and (stack, environment) == (first.get("stack"), first.get("workspace_environment")):
        return f"as on {plain_text(first.get('host'))}"
    listed = "\n".join(f"{plain_text(name)}: {_fact_text(value)}" for name, value in facts.items())
    return folded(", ".join(shown) or "no version found", tag("pre", listed))


def _fact_text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(plain_text, value)) or "none"
    return "not found" if value is None else plain_text(value)


def _variables_of(node: Mapping[str, Any], first: Mapping[str, Any]) -> str | Markup:
    """Return the variables that a node's Ray was started with and that affect a training, beside the run's own."""
    variables = node.get("environment")
    if not isinstance(variables, Mapping):
        return "not reported"
    if not variables:
        return "none"
    if node is not first and variables == first.get("environment"):
        return f"as on {plain_text(first.get('host'))}"
    listed = "\n".join(f"{plain_text(name)}={plain_text(value)}" for name, value in variables.items())
    return folded(counted(len(variables), "variable"), tag("pre", listed))


def _list_at(node: Mapping[str, Any], key: str) -> list[Any]:
    found = node.get(key)
    return found if isinstance(found, list) else []
