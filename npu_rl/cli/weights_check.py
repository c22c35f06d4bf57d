"""The command `npu-rl weights check`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npu_rl.cli.command_group import examples
from npu_rl.cli.next_steps import STARTS_OVER, if_interrupted, tell_next
from npu_rl.cli.options import Json, Overrides, Python, Workers, Workspace
from npu_rl.cli.show import error_count, print_json, say

if TYPE_CHECKING:
    from npu_rl.weights.checkpoints.checkpoint_findings import CheckedFolder
    from npu_rl.weights.checkpoints.hash_list import HashComparison


@examples(
    "npu-rl weights check V3-BF16 --recipe deepseek-r1-zero-256die",
    "npu-rl weights check V3-BF16 --write-hashes    # on the node that made it",
    "npu-rl weights check V3-BF16 --verify-hashes   # on every other node",
)
def check(
    checkpoint: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the checkpoint.")],
    overrides: Overrides = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", metavar="RECIPE", help="The recipe that will train on it.")
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write-hashes",
            help="Write the SHA-256 of every file beside them; of a Megatron checkpoint, too.",
        ),
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify-hashes", help="Compare every file with that list, and nothing else.")
    ] = False,
    workers: Workers = None,
    workspace: Workspace = None,
    python: Python = None,
    json: Json = False,
) -> None:
    """Check the files of a checkpoint.

    It checks config.json, index and shards, and compares the names and shapes of all tensors with the model of
    transformers. Of a Megatron checkpoint it checks the files.
    """
    from npu_rl.cli import judged
    from npu_rl.cli.weights import checkpoint_folder, interpreter
    from npu_rl.common.errors import UsageError
    from npu_rl.recipes.checkpoints.checkpoint_of_recipe import CheckpointOfRecipe
    from npu_rl.weights.checkpoints.check_weights import check_weights, is_checkpoint
    from npu_rl.weights.checkpoints.worker_pool import pool_of

    if write and verify:
        raise UsageError("--write-hashes conflicts with --verify-hashes", hint="Give one of them.")
    if overrides and recipe is None:
        raise UsageError(
            "KEY=VALUE needs --recipe", where=overrides[0], hint="Name the recipe: --recipe NAME"
        )
    place = checkpoint_folder(checkpoint)
    loaded = None if recipe is None else judged.load(recipe, overrides or [], json)
    if_interrupted(STARTS_OVER)
    only_hashes = verify or (write and loaded is None and not is_checkpoint(place))
    pool = pool_of(None if only_hashes else interpreter(python, workspace), workers)
    wanted = None if loaded is None else CheckpointOfRecipe(loaded)
    report = None if only_hashes else check_weights(place, pool, wanted)
    hashes = None
    if verify or (write and (report is None or report.ok)):
        hashes = _hashes(place, pool.count, write)
    ok = (report is None or report.ok) and (hashes is None or hashes.ok)
    if json:
        document = {"ok": ok, "folder": str(place)} if report is None else {**report.to_json(), "ok": ok}
        found = [] if report is None else judged.rows(report.findings)
        print_json({**document, "findings": found, "hashes": hashes and asdict(hashes)})
    else:
        _say(report, hashes, write)
    if not ok:
        raise SystemExit(1)
    if not json:
        _tell_next(checkpoint, recipe, overrides or [], workspace, has_list=write or verify)


def _tell_next(
    checkpoint: Path, recipe: str | None, overrides: list[str], workspace: Path | None, *, has_list: bool
) -> None:
    if recipe is not None:
        tell_next("plan", recipe, *overrides, workspace=workspace)
    elif not has_list:
        tell_next("weights", "check", checkpoint, "--write-hashes", workspace=workspace)


def _hashes(folder: Path, count: int, write: bool) -> HashComparison:
    from npu_rl.cli.weights_progress import reading
    from npu_rl.weights.checkpoints.hash_list import bytes_to_read, verify_hashes, write_hashes

    with reading(bytes_to_read(folder)) as progress:
        return (write_hashes if write else verify_hashes)(folder, count, progress)


def _say(report: CheckedFolder | None, hashes: HashComparison | None, write: bool) -> None:
    from npu_rl.cli import judged

    if report is not None:
        figures = report.to_json()
        dtypes = ", ".join(f"{count} in {dtype}" for dtype, count in figures["tensors"].items())
        kind = report.megatron
        shards = f"Megatron's {kind}, {figures['shards']} files" if kind else f"{figures['shards']} shards"
        if figures["bytes"]:
            say(f"{figures['folder']}: {shards}, {figures['bytes'] / 1e9:.1f} GB; tensors: {dtypes or 0}")
        judged.say_findings(report.findings)
        if report.unchecked:
            say(f"not checked: names and shapes of the tensors: {report.unchecked}")
        elif report.ok and not kind:
            say(f"names and shapes are those of {report.model} of transformers {report.transformers}")
    if hashes is not None:
        lists = {"changed": hashes.changed, "missing": hashes.missing, "not in the list": hashes.extra}
        for what, names in lists.items():
            for name in names:
                say(f"{what}: {name}")
        done = "written" if write else "verified" if hashes.ok else "compared"
        say(f"hashes of {hashes.files} files {done}, {hashes.bytes / 1e9:.1f} GB read")
    elif write:
        say("hashes not written")
    findings = report.findings if report else ()
    errors = sum(found.severity.value == "error" for found in findings)
    errors += len(hashes.changed) + len(hashes.missing) if hashes else 0
    say(error_count(errors))
