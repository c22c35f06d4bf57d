"""The command `npu-rl faults`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.next_steps import STARTS_OVER, if_interrupted
from npu_rl.cli.options import Json, ManifestIfAny, Python, Workspace, network
from npu_rl.cli.show import print_json, say, say_folded, tell
from npu_rl.common.errors import SourceError, UsageError

if TYPE_CHECKING:
    from npu_rl.recipes.faults.verdict import Verdict
    from npu_rl.recipes.faults.witness_run import Witnessed
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths

_BELOW = " " * 13  # where the text of a fault's symptom and effect begins


@examples(
    "npu-rl faults",
    "npu-rl faults deepseek-v3-cann   # of its lock, from the store",
    "npu-rl faults --run --python /opt/train/bin/python",
)
def faults(
    manifest: ManifestIfAny = None,
    workspace: Workspace = None,
    run: Annotated[
        bool, typer.Option("--run", help="Prove the workspace, then execute each fault's witness.")
    ] = False,
    python: Python = None,
    json: Json = False,
) -> None:
    """List known silent faults.

    A silent fault makes the code compute something wrong, die or hang without a useful message. The files of a
    workspace are searched for them, or with MANIFEST those of its lock, from the store. The exit code is 1 if a fault
    with a wrong result is open, a file can't be read, or a witness disagrees.
    """
    if_interrupted(STARTS_OVER)
    if manifest is not None and (workspace is not None or run):
        conflicting = "--workspace" if workspace is not None else "--run"
        raise UsageError(
            f"MANIFEST conflicts with {conflicting}",
            why="--run and --workspace are for the code of a workspace.",
            hint="Leave MANIFEST out.",
        )
    if python is not None and not run:
        raise UsageError("--python needs --run", hint="npu-rl faults --run --python PYTHON")
    shown: dict[str, Witnessed] = {}
    if manifest is not None:
        place, verdicts = _of_manifest(manifest)
    else:
        from npu_rl.cli import proving
        from npu_rl.recipes.faults.fault import known_faults
        from npu_rl.recipes.faults.verdict import judge_tree
        from npu_rl.workspace.folder.discovery import open_workspace

        paths = open_workspace(workspace, tell)
        if run:
            proving.require_proven(paths, "a witness would show the faults of other code")
        place, verdicts = str(paths.root), judge_tree(paths.code, known_faults())
        if run:
            shown = _run(paths, verdicts, python)
    if json:
        print_json(_to_json(place, verdicts, shown if run else None))
    else:
        _print(place, verdicts, shown)
    if not _is_well(verdicts, shown):
        raise SystemExit(1)


def _of_manifest(name: str) -> tuple[str, tuple[Verdict, ...]]:
    """Return the verdicts on the tree of a manifest's lock, whose files come from the store."""
    from npu_rl.recipes.faults.fault import known_faults
    from npu_rl.recipes.faults.verdict import judge_files
    from npu_rl.stack.lock import lock_model
    from npu_rl.stack.manifest.manifest_kind import find_manifest
    from npu_rl.stack.sources.progress import Silent
    from npu_rl.workspace.summary import summary_sources

    path = find_manifest(name)
    lock = lock_model.read(lock_model.lock_path(path))
    stored = summary_sources.of_manifest(lock, path, network(offline=True), Silent(), jobs=1)
    try:
        with stored as stack, stack.code_files() as read:
            return f"{lock.manifest}, tree {lock.tree}", judge_files(read, known_faults())
    except SourceError as error:
        raise SourceError(
            f"The code of {lock.manifest} is not in the store",
            why=error.what,
            hint=f"Bring it there: npu-rl setup --manifest {name}",
        ) from error


def _run(paths: WorkspacePaths, verdicts: tuple[Verdict, ...], python: str | None) -> dict[str, Witnessed]:
    """Return the witnesses' results, by the ids of the faults whose code the tree has."""
    from npu_rl.recipes.faults.verdict import ABSENT, UNKNOWN
    from npu_rl.recipes.faults.witness_run import run_witness
    from npu_rl.workspace.folder.chosen_interpreter import choose

    interpreter = choose(python, paths)
    shown = {}
    for one in verdicts:
        if one.state not in (ABSENT, UNKNOWN):
            tell(f"executing the witness of {one.fault.id}")
            shown[one.fault.id] = run_witness(one.fault.witness, paths.code, interpreter)
    return shown


def _is_well(verdicts: tuple[Verdict, ...], shown: dict[str, Witnessed]) -> bool:
    """Return whether every verdict is known, none is a wrong result, and no witness disagrees."""
    from npu_rl.recipes.faults.verdict import UNKNOWN

    bad = any(one.is_open_wrong_result or one.state == UNKNOWN for one in verdicts)
    return not bad and not _disagreeing(verdicts, shown)


def _disagreeing(verdicts: tuple[Verdict, ...], shown: dict[str, Witnessed]) -> list[str]:
    """Return the ids of the faults whose witness contradicts the texts."""
    from npu_rl.recipes.faults.witness_run import HAS_FAULT, HAS_NONE

    contrary = {one.fault.id: HAS_NONE if one.is_open else HAS_FAULT for one in verdicts}
    return [name for name, found in shown.items() if found.state == contrary[name]]


def _to_json(place: str, verdicts: tuple[Verdict, ...], shown: dict[str, Witnessed] | None) -> dict[str, Any]:
    rows = []
    for one in verdicts:
        row = one.to_json()
        if shown is not None:
            found = shown.get(one.fault.id)
            row["witness"] = None if found is None else found.to_json()
        rows.append(row)
    return {"ok": _is_well(verdicts, shown or {}), "tree": place, "faults": rows}


def _print(place: str, verdicts: tuple[Verdict, ...], shown: dict[str, Witnessed]) -> None:
    from npu_rl.recipes.faults.verdict import ABSENT, ENDED, OPEN, UNKNOWN, count_line

    disagreeing = _disagreeing(verdicts, shown)
    for state in (OPEN, ENDED):
        for one in verdicts:
            if one.state != state:
                continue
            by = f" by {one.by}" if one.by else ""
            title = f"{one.fault.title} [{one.fault.id}, {one.fault.severity}] ({one.where})"
            say_folded(f"{one.state}{by}: {title}", "    ")
            if one.is_open:
                say_folded(f"    symptom: {one.fault.symptom}", _BELOW)
                say_folded(f"    effect:  {one.fault.effect}", _BELOW)
                if one.fault.strategy:
                    say(f"    only with actor.strategy {one.fault.strategy}")
            found = shown.get(one.fault.id)
            if found is not None:
                figures = ", ".join(f"{name} {value}" for name, value in found.figures.items())
                detail = found.reason or figures
                differs = "; this DIFFERS from the texts" if one.fault.id in disagreeing else ""
                say_folded(f"    witness: {found.state}{f': {detail}' if detail else ''}{differs}", _BELOW)
    for one in verdicts:
        if one.state == UNKNOWN:
            say_folded(
                f"{UNKNOWN}, since {one.where} can't be read: {one.fault.title} [{one.fault.id}]", "    "
            )
    absent = [one.fault.id for one in verdicts if one.state == ABSENT]
    if absent:
        say_folded(f"{ABSENT}: {', '.join(absent)}", "    ")
    say_folded(f"{place}: {count_line(verdicts)}", "    ")
