"""The command `npu-rl verify`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.next_steps import STARTS_OVER, if_interrupted
from npu_rl.cli.options import Expect, Json, Python, Workspace
from npu_rl.cli.show import print_json, say, say_ids, tell

if TYPE_CHECKING:
    from npu_rl.rehearsal.import_check.import_report import InterpreterReport
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
    from npu_rl.workspace.verification.verify import Report

_SHOWN = 20  # files with byte code, of which there can be thousands


@examples(
    "npu-rl verify",
    "npu-rl verify --deep   # read every byte, not only times and sizes",
    "npu-rl verify --imports --python /opt/train/bin/python",
)
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
            help="Check the training interpreter, too: where each module comes from, its packages, and whether "
            "each patched place is still the patched one after all imports.",
        ),
    ] = False,
    python: Python = None,
    json: Json = False,
) -> None:
    """Prove a workspace equals its lock.

    It compares files, folders, modes and every patch, hunk by hunk. The exit code is 3 if anything differs.
    """
    from npu_rl.cli import proving
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
    with proving.shown() as progress:
        report = verified(paths, tell, deep=deep, expect=expected, progress=progress)
    if expected is not None and expected.environment is not None:
        _require_environment(paths, report, python, expected.environment)
    _tell_of_changes(report)
    own = list(own_work(paths.root, report.receipt))
    checked = _check_imports(paths, report, python) if imports and report.ok else None
    if json:
        of_imports = {"imports": checked.to_json()} if checked else {}
        print_json({**report.to_json(), "own_work": own, **of_imports})
    else:
        _print(paths, report, own)
        for line in checked.lines() if checked else ():
            say(line)
    if not report.ok or (checked is not None and not checked.ok):
        raise SystemExit(3)


def _require_environment(paths: WorkspacePaths, report: Report, python: str | None, expected: str) -> None:
    from npu_rl.training.host.workspace_environment import (
        python_version,
        require_environment,
        workspace_environment,
    )
    from npu_rl.workspace.folder.chosen_interpreter import choose

    chosen = choose(python, paths, report.receipt.setup)
    require_environment(paths, workspace_environment(report, python_version(chosen)), expected)


def _check_imports(paths: WorkspacePaths, report: Report, python: str | None) -> InterpreterReport:
    from npu_rl.rehearsal.import_check.check_imports import check_imports
    from npu_rl.workspace.folder.chosen_interpreter import choose

    return check_imports(paths, report, choose(python, paths, report.receipt.setup), tell)


def _tell_of_changes(report: Report) -> None:
    from npu_rl.workspace.folder.lock_summary import manifest_changed

    manifest = Path(str(report.receipt.setup.get("manifest", "")))
    if manifest.is_file() and manifest_changed(report.lock, manifest):
        tell(f"note: {manifest.name} has changed since this workspace's lock was made.")


def _print(paths: WorkspacePaths, report: Report, own: list[str]) -> None:
    for path, what in report.ignored.items():
        say(f"  ignored    {path}  ({what}, not from the lock)")
    _print_byte_code(report)
    for path, state in report.built.items():
        if state in ("built here", "stale"):
            again = "; its sources or commands are others now" if state == "stale" else ""
            say(f"  {state:<10} {path}{again}")
    for drift in report.drift:
        whose = drift.component or ("no component" if drift.kind == "untracked" else "written by setup")
        hit = f", {drift.patch} hunk {drift.hunk}" if drift.patch else ""
        say(f"  {drift.kind:<10} {drift.path}  ({whose}{hit})")
    for (component, name), hunks in report.patches.items():
        states = Counter(hunk["state"] for hunk in hunks)
        told = ", ".join(f"{count} {state}" for state, count in states.items()) or "no hunks in code"
        say(f"  {component}: {name}: {told}")
        for hunk in hunks:
            if hunk["state"] not in ("in place", "superseded"):
                say(f"      {hunk['state']:<8} {hunk['file']}:{hunk['line']}")
    for line in own:
        say(f"  yours      {line}")
    how = (
        "every byte read" if report.deep else f"{report.hashed} read, the others untouched since last proven"
    )
    if report.ok:
        say(f"{paths.root} equals its lock: {report.files} files ({how}).")
        say_ids(report.lock, report.lock_digest)
        if own:
            say("Next: npu-rl patches export   # writes your commits as patches")
    else:
        count = len({d.path for d in report.drift})
        say(
            f"{paths.root} differs from its lock: {count} of {report.files} files are changed, missing or untracked."
        )
        from npu_rl.workspace.folder.receipt import diff_command, setup_hint

        aside, *explained = setup_hint(paths, report.receipt.setup, "--discard").splitlines()
        say(f"Next: {diff_command(paths)}   # shows the changes")
        if own:
            say("      npu-rl patches export   # writes your commits as patches")
        say(f"      {aside}   # moves them aside")
        for line in explained:
            say(f"      {line}")


def _print_byte_code(report: Report) -> None:
    """Print the byte code that a Python without the workspace's environment would run instead of its sources."""
    for path in report.byte_code[:_SHOWN]:
        older = path.startswith(".npu-rl/")
        read = (
            "read in a shell that sourced this older `activate`"
            if older
            else "not read by npu-rl or in an activated shell"
        )
        say(f"  byte code, {read}  {path}")
    if len(report.byte_code) > _SHOWN:
        say(f"  byte code: {len(report.byte_code) - _SHOWN} more files (--json lists all)")
