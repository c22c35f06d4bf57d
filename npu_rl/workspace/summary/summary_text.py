"""Formatting of a summary as plain lines and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npu_rl.workspace.summary.compare import DefinitionChange
from npu_rl.workspace.summary.file_changes import FileChange
from npu_rl.workspace.summary.rebindings import Rebinding
from npu_rl.workspace.summary.stack_summary import StackSummary, StepSummary


def summary_lines(summary: StackSummary) -> Iterator[str]:
    """Yield the summary as plain lines: each step with its reason, its files and their changed definitions."""
    if not summary.steps:
        yield f"{summary.manifest}: no patch and no pull request changes the upstream code."
    for one in summary.steps:
        yield _title(one)
        if one.step.subject:
            yield f"  {one.step.subject}"
        if one.step.why:
            yield f"  Why: {one.step.why}"
        yield from (f"  commit {commit}" for commit in one.step.commits)
        for file in one.files:
            yield f"  {_file_line(one, file)}"
            width = max((len(change.kind) for change in file.definitions or ()), default=0)
            for change in file.definitions or ():
                yield f"    {change.change:<8} {change.kind:<{width}} {change.name}{_details(change)}  :{change.line}"
    yield from _import_time_lines(summary.import_time or ())


def _import_time_lines(found: Sequence[Rebinding]) -> Iterator[str]:
    """Yield the rebindings, grouped by the package and the package it changes."""
    for title, group in _by_packages(found).items():
        yield f"{title}: {len(group)}"
        for one in group:
            value = f" by {one.value}" if one.value else ""
            yield f"  {one.how:<10} {one.target}{value}  {one.file}:{one.line}"


def _by_packages(found: Sequence[Rebinding]) -> dict[str, list[Rebinding]]:
    groups: dict[str, list[Rebinding]] = {}
    for one in found:
        package, other = one.file.partition("/")[0], one.target.partition(".")[0]
        when = "where the feature is on" if one.registered else "when it is imported"
        groups.setdefault(f"{package} rebinds in {other}, {when}", []).append(one)
    return dict(sorted(groups.items()))


def _title(one: StepSummary) -> str:
    return f"{one.step.component or 'code tree'}: {one.step.how} {one.step.name}"


def _file_line(one: StepSummary, file: FileChange) -> str:
    places = one.paths[file.path]
    elsewhere = f" (at {', '.join(places)})" if places != (file.path,) else ""
    place = elsewhere if places else ", not in the code tree"
    note = f": {file.note}" if file.note else ""
    return f"{file.state} {file.path}{place}{note}"


def _details(change: DefinitionChange) -> str:
    return f": {'; '.join(change.details)}" if change.details else ""
