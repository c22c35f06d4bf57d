"""The commands on a workspace as it is: `npu-rl verify`, `status` and `diff`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.options import Expect, Json, Python, Workspace
from npu_rl.cli.progress import FilesRead
from npu_rl.cli.show import STARTS_OVER, if_interrupted, print_json, say, say_ids, say_text, tell

if TYPE_CHECKING:
    from npu_rl.rehearsal.import_check.check_imports import InterpreterReport
    from npu_rl.training.host.workspace_environment import Status, WorkspaceEnvironment
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
    from npu_rl.workspace.verification.verify import Report

_SHOWN = 20  # files with byte code, of which there can be thousands


# -- verify -------------------------------------------------------------------------------------------


@examples("npu-rl verify", "npu-rl verify --imports --python /opt/train/bin/python")
def verify(
    workspace: Workspace = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every byte instead of trusting times and sizes.")
    ] = False,
    expect: Expect = None,
    imports: Annotated[
        bool,
        typer.Option(
            "--imports",
            help="Check the training interpreter, too: where each module comes from, and its packages.",
        ),
    ] = False,
    python: Python = None,
    json: Json = False,
) -> None:
    """Prove a workspace equals its lock.

    It compares files, folders, modes and every patch, hunk by hunk. The exit code is 3 if anything differs.
    """
    from npu_rl.workspace.folder.discovery import open_workspace
    from npu_rl.workspace.folder.local_edits import own_work
    from npu_rl.workspace.verification.verify import verify as verified

    if deep or imports:
        if_interrupted(STARTS_OVER)
    expected = None
    if expect:
        from npu_rl.workspace.verification.expected_digest import parse_expected

        expected = parse_expected(expect)
    if python is not None and not imports and (expected is None or expected.environment is None):
        from npu_rl.common.errors import UsageError

        raise UsageError(
            "--python is for --imports and --expect env:HEX", hint="Add one of them, or leave --python out."
        )
    paths = open_workspace(workspace, tell)
    with FilesRead() as progress:
        report = verified(paths, tell, deep=deep, expect=expected, progress=progress)
    if expected is not None and expected.environment is not None:
        _require_environment(paths, report, python, expected.environment)
    _note_changed_manifest(report)
    checked = _check_imports(paths, report, python) if imports and report.ok else None
    report.own_work, report.imports = list(own_work(paths.root, report.receipt)), checked
    if json:
        print_json(report)
    else:
        _say_report(paths, report)
        for line in checked.lines() if checked else ():
            say(line)
    if not report.ok or (checked is not None and not checked.ok):
        raise SystemExit(3)


def _require_environment(paths: WorkspacePaths, report: Report, python: str | None, expected: str) -> None:
    from npu_rl.training.host import workspace_environment as environment
    from npu_rl.workspace.folder.chosen_interpreter import choose

    version = environment.python_version(choose(python, paths, report.receipt.setup))
    environment.require_environment(paths, environment.workspace_environment(report, version), expected)


def _check_imports(paths: WorkspacePaths, report: Report, python: str | None) -> InterpreterReport:
    from npu_rl.rehearsal.import_check.check_imports import check_imports
    from npu_rl.workspace.folder.chosen_interpreter import choose

    return check_imports(paths, report, choose(python, paths, report.receipt.setup))


def _note_changed_manifest(report: Report) -> None:
    from npu_rl.workspace.folder.lock_summary import manifest_changed

    manifest = Path(str(report.receipt.setup.get("manifest", "")))
    if manifest.is_file() and manifest_changed(report.lock, manifest):
        tell(f"note: {manifest.name} has changed since this workspace's lock was made.")


def _say_report(paths: WorkspacePaths, report: Report) -> None:
    own = report.own_work
    _say_beside(report)
    for drift in report.drift:
        whose = drift.component or ("no component" if drift.kind == "untracked" else "written by setup")
        hit = f", {drift.patch} hunk {drift.hunk}" if drift.patch else ""
        say(f"  {drift.kind:<10} {drift.path}  ({whose}{hit})")
    for patch in report.patches:
        states = Counter(hunk["state"] for hunk in patch.hunks)
        counts = ", ".join(f"{count} {state}" for state, count in states.items()) or "no hunks in code"
        say(f"  {patch.component}: {patch.name}: {counts}")
        for hunk in patch.hunks:
            if hunk["state"] not in ("in place", "superseded"):
                say(f"      {hunk['state']:<8} {hunk['file']}:{hunk['line']}")
    for line in own:
        say(f"  yours      {line}")
    read = f"{report.hashed} read, the others untouched since last proven"
    export = "npu-rl patches export   # writes your commits as patches"
    if report.ok:
        say(
            f"{paths.root} equals its lock: {report.files} files ({'every byte read' if report.deep else read})."
        )
        say_ids(report.lock, report.lock_digest)
        if own:
            say(f"Next: {export}")
        return
    from npu_rl.workspace.folder.receipt import diff_command, setup_hint

    count = len({d.path for d in report.drift})
    changed = f"{count} of {report.files} files are changed, missing or untracked"
    say(f"{paths.root} differs from its lock: {changed}.")
    aside, *explained = setup_hint(paths, report.receipt.setup, "--discard").splitlines()
    say(f"Next: {diff_command(paths)}   # shows the changes")
    for line in (*([export] if own else []), f"{aside}   # moves them aside", *explained):
        say(f"      {line}")


def _say_beside(report: Report) -> None:
    """Print what is not from the lock and no drift: ignored files, byte code and products of builds."""
    for path, what in report.ignored.items():
        say(f"  ignored    {path}  ({what}, not from the lock)")
    for path in report.byte_code[:_SHOWN]:
        older = path.startswith(".npu-rl/")
        read = "read in a shell that sourced this older `activate`"
        say(f"  byte code, {read if older else 'not read by npu-rl or in an activated shell'}  {path}")
    if len(report.byte_code) > _SHOWN:
        say(f"  byte code: {len(report.byte_code) - _SHOWN} more files (--json lists all)")
    for path, state in report.built.items():
        if state in ("built here", "stale"):
            again = "; its sources or commands are others now" if state == "stale" else ""
            say(f"  {state:<10} {path}{again}")


# -- status -------------------------------------------------------------------------------------------


@examples("npu-rl status", "npu-rl status --workspace /data/r1-zero")
def status(workspace: Workspace = None, json: Json = False) -> None:
    """Show what a workspace is.

    It prints its manifest, ids, components, patches, local changes, and the id of its environment on this host: of all
    that decides how a training behaves. --expect takes that id.
    """
    from npu_rl.training.host.workspace_environment import status_of
    from npu_rl.workspace.folder.discovery import open_workspace
    from npu_rl.workspace.verification.verify import verify

    paths = open_workspace(workspace, tell)
    report = verify(paths, tell)
    found = status_of(paths, report, _environment(paths, report))
    if json:
        print_json(found)
    else:
        _say_status(found)


def _say_status(found: Status) -> None:
    import time

    from npu_rl.common.printable import counted
    from npu_rl.training.host.workspace_environment import environment_lines
    from npu_rl.workspace.folder.lock_summary import stack_lines

    lock = found.lock
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.setup.get("made", 0)))
    say(f"{found.workspace}: {lock.manifest} ({lock.title})")
    for name, value in (("tree", lock.tree), ("commit", lock.commit), ("lock", found.lock_digest)):
        say(f"  {name:<9} {value}")
    say(f"  set up    {made}, npu-rl {found.setup.get('npu_rl')}")
    for number, line in enumerate(environment_lines(found.environment) if found.environment else ()):
        say(f"  {'' if number else 'env':<9} {line}")
    for line in stack_lines(lock):
        say(line)
    say("  clean" if not found.changed else f"  {counted(found.changed, 'local change')}: npu-rl verify")
    for line in found.own_work:
        say(f"  yours     {line}")
    if found.own_work:
        say("  npu-rl patches export writes your commits as patches")
    for name in found.kept:
        say(f"  kept      {found.workspace}/.npu-rl/kept/{name}")


def _environment(paths: WorkspacePaths, report: Report) -> WorkspaceEnvironment | None:
    """Return the environment with the interpreter that `train` would take; None if it is unknown."""
    from npu_rl.common.errors import NpuRlError
    from npu_rl.training.host.workspace_environment import python_version, workspace_environment
    from npu_rl.training.run.allow_drift import drift_digest
    from npu_rl.workspace.folder.chosen_interpreter import choose

    try:
        python = choose(None, paths, report.receipt.setup)
        return workspace_environment(report, python_version(python), changed=drift_digest(paths, report))
    except NpuRlError as error:
        tell(f"note: the environment has no id here: {error.what}")
        return None


# -- diff ---------------------------------------------------------------------------------------------


@examples("npu-rl diff > my-changes.patch", "npu-rl diff --component verl > 0001-my-fix.patch")
def diff(
    workspace: Workspace = None,
    component: Annotated[
        str | None,
        typer.Option(
            "--component",
            metavar="NAME",
            help="Print only the changes of NAME, in its own paths: a patch for its `patches:`.",
        ),
    ] = None,
) -> None:
    """Show local changes as a patch.

    They are compared with the locked tree. The output is empty if nothing has changed.
    """
    from npu_rl.workspace.folder.discovery import open_workspace
    from npu_rl.workspace.verification.component_diff import component_changes
    from npu_rl.workspace.verification.diff import local_changes

    paths = open_workspace(workspace, tell)
    # A patch is bytes and stays them in a file or pipe; a terminal would obey them.
    shown = sys.stdout.isatty()
    for chunk in (
        local_changes(paths, tell) if component is None else [component_changes(paths, component, tell)]
    ):
        if shown:
            say_text(chunk.decode("utf-8", "backslashreplace"))
        else:
            sys.stdout.buffer.write(chunk)
    sys.stdout.flush()
