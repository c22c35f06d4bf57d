"""The command `npu-rl faults`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Json, Python, Workspace, manifest_names, network
from npu_rl.cli.show import STARTS_OVER, if_interrupted, print_json, say, say_table, tell
from npu_rl.common.errors import SourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npu_rl.recipes.faults.fault import KnownFault
    from npu_rl.recipes.faults.verdict import Verdict
    from npu_rl.recipes.faults.witness_run import FaultReport, Witnessed
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths

    Witnesses = dict[str, Witnessed]

_HEADS = ("state", "effect", "id", "file:line")


def _names() -> list[str]:
    from npu_rl.recipes.faults.fault import known_faults

    return [*(fault.id for fault in known_faults()), *manifest_names()]


@examples(
    "npu-rl faults",
    "npu-rl faults router-bias-bfloat16   # what it does, and its witness",
    "npu-rl faults --run --python /opt/train/bin/python",
)
def faults(
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID|MANIFEST]",
            help="A fault's id, or a manifest whose code is in the store.",
            autocompletion=_names,
        ),
    ] = None,
    workspace: Workspace = None,
    run: Annotated[
        bool, typer.Option("--run", help="Prove the workspace, then execute each fault's witness.")
    ] = False,
    python: Python = None,
    json: Json = False,
) -> None:
    """List known silent faults.

    A silent fault makes the code compute something wrong, die or hang without a useful message. The files of a
    workspace are searched for them, or with MANIFEST those of its lock, from the store. Those that the recipes of the
    workspace's manifest reach come first. The exit code is 1 if a fault with a wrong result is open, a file can't be
    read, or a witness disagrees.
    """
    from npu_rl.common.yaml_documents.suggest import nearest_names
    from npu_rl.recipes.faults.fault import known_faults
    from npu_rl.recipes.faults.verdict import count_line

    if_interrupted(STARTS_OVER)
    chosen = [fault for fault in known_faults() if which in (None, fault.id)]
    manifest = None if chosen else which
    if manifest is not None and manifest not in manifest_names() and not Path(manifest).exists():
        close = nearest_names(manifest, _names(), 3)
        near = f"Did you mean {' or '.join(close)}?" if close else "npu-rl faults"
        raise UsageError(f"Unknown fault {manifest}", hint=near)
    if manifest is not None and (workspace is not None or run):
        conflicting = "--workspace" if workspace is not None else "--run"
        raise UsageError(
            f"MANIFEST conflicts with {conflicting}",
            why="--run and --workspace are for the code of a workspace.",
            hint="Leave MANIFEST out.",
        )
    if python is not None and not run:
        raise UsageError("--python needs --run", hint="npu-rl faults --run --python PYTHON")
    if manifest is not None:
        report, names = _of_manifest(manifest)
    elif which is not None and not run and _has_no_workspace(workspace):
        _describe(chosen[0], None)
        return
    else:
        report, names = _of_workspace(workspace, chosen, run, python)
    if json:
        print_json(report)
    elif which is not None and manifest is None:
        _describe(chosen[0], report.verdicts[0])
        _print_witnesses(report)
    else:
        _print_tables(names, report)
        _print_witnesses(report)
        say(f"{report.tree}: {count_line(report.verdicts)}")
    if not report.ok:
        raise SystemExit(1)


def _has_no_workspace(workspace: Path | None) -> bool:
    from npu_rl.workspace.folder.discovery import find_workspace

    return workspace is None and find_workspace(None) is None


def _of_manifest(name: str) -> tuple[FaultReport, list[str]]:
    """Return the verdicts on the tree of a manifest's lock, whose files come from the store, and its manifests."""
    from npu_rl.common.yaml_documents.document_kind import find_manifest
    from npu_rl.recipes.faults.fault import known_faults
    from npu_rl.recipes.faults.verdict import judge_files
    from npu_rl.recipes.faults.witness_run import FaultReport
    from npu_rl.stack.compose.assemble import patches_by_file
    from npu_rl.stack.lock import lock_model
    from npu_rl.stack.sources.progress import Silent
    from npu_rl.workspace.folder.lock_summary import manifests_of
    from npu_rl.workspace.summary import summary_sources

    path = find_manifest(name)
    lock = lock_model.read(lock_model.lock_path(path))
    stored = summary_sources.of_manifest(lock, path, network(offline=True), Silent(), jobs=1)
    try:
        with stored as stack, stack.code_files() as read:
            verdicts = judge_files(read, known_faults(), patches_by_file(lock))
            return FaultReport(f"{lock.manifest}, tree {lock.tree}", verdicts, {}), manifests_of(lock)
    except SourceError as error:
        raise SourceError(
            f"The code of {lock.manifest} is not in the store",
            why=error.what,
            hint=f"Set it up there: npu-rl setup --manifest {name}",
        ) from error


def _of_workspace(
    workspace: Path | None, chosen: Sequence[KnownFault], run: bool, python: str | None
) -> tuple[FaultReport, list[str]]:
    from npu_rl.cli import progress
    from npu_rl.recipes.faults.verdict import judge_tree
    from npu_rl.recipes.faults.witness_run import FaultReport
    from npu_rl.stack.compose.assemble import patches_by_file
    from npu_rl.stack.lock import lock_model
    from npu_rl.workspace.folder.discovery import open_workspace
    from npu_rl.workspace.folder.lock_summary import manifests_of

    paths = open_workspace(workspace, tell)
    if run:
        progress.require_proven(paths, "a witness would show the faults of other code")
    lock = lock_model.read(paths.lock)
    verdicts = judge_tree(paths.code, chosen, patches=patches_by_file(lock))
    shown = _run(paths, verdicts, python) if run else {}
    return FaultReport(str(paths.root), verdicts, shown), manifests_of(lock)


def _run(paths: WorkspacePaths, verdicts: Sequence[Verdict], python: str | None) -> Witnesses:
    """Return the witnesses' results, by the ids of the faults whose code the tree has."""
    from npu_rl.common.interpreter import read_interpreter
    from npu_rl.common.package_versions import lacking_packages
    from npu_rl.recipes.faults.verdict import ABSENT, UNKNOWN
    from npu_rl.recipes.faults.witness_run import EXTRA, required_packages, run_witness
    from npu_rl.workspace.folder.chosen_interpreter import choose

    present = [one.fault for one in verdicts if one.state not in (ABSENT, UNKNOWN)]
    interpreter = choose(python, paths)
    wanted = required_packages()
    lacking = lacking_packages(read_interpreter(interpreter).packages, wanted) if present else []
    missing = [one.name for one, _ in lacking]
    if missing:
        tell(
            f"note: {interpreter} lacks {len(missing)} of {len(wanted)} packages of the extra `{EXTRA}`, so witnesses "
            f"may not run: {', '.join(missing)}. Name an interpreter that has `npu-rl[{EXTRA}]`: --python PATH"
        )
    shown = {}
    for fault in present:
        tell(f"executing the witness of {fault.id}")
        shown[fault.id] = run_witness(fault.witness, paths.code, interpreter)
    return shown


def _print_tables(manifests: Sequence[str], report: FaultReport) -> None:
    from npu_rl.recipes.faults.fault import SEVERITIES
    from npu_rl.recipes.faults.verdict import ABSENT, STATES
    from npu_rl.recipes.judgement.fault_findings import strategies_of

    strategies = strategies_of(manifests)
    present = [one for one in report.verdicts if one.state != ABSENT]
    present.sort(key=lambda one: (STATES.index(one.state), SEVERITIES.index(one.fault.severity)))
    reached = [one for one in present if any(map(one.fault.concerns, strategies)) or not strategies]
    others = [one for one in present if one not in reached]
    heads = (*_HEADS, "witness") if report.witnesses else _HEADS
    if reached:
        say_table(heads, [_row(one, report) for one in reached])
    if others:
        recipes = (
            f"The recipes of {manifests[0]} don't reach these" if manifests else "No recipe reaches these"
        )
        say(f"{recipes}:")
        say_table(heads, [_row(one, report) for one in others])


def _row(verdict: Verdict, report: FaultReport) -> list[str]:
    cells = [_state(verdict), verdict.fault.severity, verdict.fault.id, verdict.where]
    if report.witnesses:
        found = report.witnesses.get(verdict.fault.id)
        cells.append(f"{found.state}{', DIFFERS' if report.disagrees(verdict) else ''}" if found else "")
    return cells


def _state(verdict: Verdict) -> str:
    from npu_rl.recipes.faults.verdict import UNPROVEN

    return f"{UNPROVEN}: run the witness" if verdict.state == UNPROVEN else verdict.state


def _print_witnesses(report: FaultReport) -> None:
    """Print why a witness was not run, and the figures of those that have a fault or disagree."""
    from npu_rl.recipes.faults.witness_run import HAS_NONE

    for one in report.verdicts:
        found, differing = report.witnesses.get(one.fault.id), report.disagrees(one)
        if found is not None and (found.state != HAS_NONE or differing or len(report.verdicts) == 1):
            figures = ", ".join(f"{key} {value}" for key, value in found.figures.items())
            differs = "; this DIFFERS from the texts" if differing else ""
            say(f"{one.fault.id}: {found.state}: {found.reason or figures}{differs}")


def _describe(fault: KnownFault, verdict: Verdict | None) -> None:
    """Print what a fault is and does, its state in a tree, and how to run its witness."""
    import shlex

    from npu_rl.recipes.faults.witness_run import witness_variables

    say(f"{fault.id}: {fault.title}")
    rows = {
        name: getattr(fault, name)
        for name in ("severity", "symptom", "metrics", "effect", "versions", "upstream")
    }
    rows["ended by"] = "; ".join(ending.by for ending in fault.ended) or "nothing yet"
    rows["switch"] = f"adaptations.{fault.switch}" if fault.switch else ""
    rows["only with"] = f"actor.strategy {fault.strategy}" if fault.strategy else ""
    if verdict is not None:
        by = f" by {verdict.by}" if verdict.by else ""
        state = (
            f"{_state(verdict)}; {verdict.after} touches the file after the fix"
            if verdict.after
            else verdict.state
        )
        rows["state"] = f"{state}{by} ({verdict.where})"
    for label, text in rows.items():
        if text:
            say(f"  {label + ':':<10} {text}")
    variables = witness_variables(fault.witness, ".")
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    say(f"Run its witness on a workspace: npu-rl faults {fault.id} --run")
    say("By hand, in the folder code:")
    say(f"  {words} python {shlex.quote(str(fault.witness))}")
