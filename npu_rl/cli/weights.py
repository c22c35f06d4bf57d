"""The commands `npu-rl weights`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.options import (
    Config,
    ExpertsOverTensor,
    Json,
    NewFolder,
    Overrides,
    Python,
    RecipeIfNamed,
    Run,
    Workers,
    Workspace,
)
from npu_rl.cli.show import (
    GOES_ON,
    STARTS_OVER,
    error_count,
    if_interrupted,
    print_json,
    print_report,
    say,
    tell,
    tell_next,
)

if TYPE_CHECKING:
    from npu_rl.weights.checkpoints.checkpoint_findings import CheckedFolder
    from npu_rl.weights.checkpoints.hash_list import HashComparison
    from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout

app = group(
    "Prepare model weights for a trainer.",
    {
        "get": "get:weights",
        "cast": "weights:cast",
        "check": "weights:check",
        "convert": "weights:convert",
        "audit": "weights:audit",
        "export": "weights:export",
    },
)

Input = Annotated[Path, typer.Argument(metavar="IN", help="The folder of a checkpoint.")]


def _checkpoint(path: Path) -> Path:
    """Return the absolute path of a checkpoint's folder. Raises UsageError if it does not exist."""
    from npu_rl.common.user_path import existing_folder

    return existing_folder(
        path, "Pass the folder of a checkpoint; `npu-rl weights get NAME` prints how to download one."
    )


def _absolute(path: Path | None) -> Path | None:
    from npu_rl.common.user_path import user_path

    return None if path is None else user_path(path).absolute()


def _interpreter(python: str | None, workspace: Path | None) -> str:
    """Return the given interpreter, else the one chosen for the workspace, else the one that runs npu-rl."""
    from npu_rl.workspace.folder.chosen_interpreter import choose
    from npu_rl.workspace.folder.discovery import open_workspace_if_any

    if sys.platform != "linux":
        tell("The memory that a pickled file takes to open is limited on Linux only")
    return choose(python, None if python is not None else open_workspace_if_any(workspace, tell))


def _last_line(report: dict[str, Any]) -> str:
    """Return the end of a report: the duration, and the files that were there from before."""
    if not report["seconds"]:
        return (
            "It was finished before, and each file has its size; `npu-rl weights audit` compares the values."
        )
    kept = f"; {report['files_kept']} files were there from before" if report["files_kept"] else ""
    return f"Done in {report['seconds']:.1f} s{kept}."


# -- cast and convert ---------------------------------------------------------------------------------


@examples("npu-rl weights cast DeepSeek-V3-Base V3-BF16   # again: it continues")
def cast(
    source: Input,
    target: NewFolder,
    workers: Workers = None,
    device: Annotated[
        Literal["cpu", "cuda", "npu"],
        typer.Option("--device", help="The computing device; the bytes are the same."),
    ] = "cpu",
    workspace: Workspace = None,
    python: Python = None,
    json: Json = False,
) -> None:
    """Cast FP8 weights to BF16.

    It casts DeepSeek's FP8 shard by shard, and rewrites index and config.json. Tensors of multi-token prediction are
    left out. Interrupted, the same command continues.
    """
    from npu_rl.cli.progress import Weights
    from npu_rl.common.user_path import user_path
    from npu_rl.weights.checkpoints.convert_weights import ConvertOptions, convert_weights
    from npu_rl.weights.checkpoints.worker_pool import pool_of
    from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout

    pool = pool_of(_interpreter(python, workspace), workers, inherit_path=device == "npu")
    place, layout = user_path(target).absolute(), OutputLayout("hf")
    options = ConvertOptions(_checkpoint(source), place, layout, command="cast", device=device)
    if_interrupted(GOES_ON)
    with Weights("casting") as watch:
        report = convert_weights(options, pool, watch)
    print_report(report, lambda: _cast_text(report), as_json=json)
    if not json:
        tell_next("weights", "check", target, workspace=workspace)


def _cast_text(of: dict[str, Any]) -> str:
    same = ", ".join(f"{count} in {dtype}" for dtype, count in of["copied_tensors"].items()) or "none"
    not_copied = f"; not copied: {', '.join(of['not_copied'])}" if of["not_copied"] else ""
    return f"""\
{of["output"]["path"]}: {of["files"]} shards in BF16, {of["bytes"] / 1e9:.1f} GB
  tensors:  {of["cast"]} cast from FP8; copied as they are: {same}
  left out: {of["scales_left_out"]} scales, {len(of["mtp_left_out"])} tensors of multi-token prediction
  config:   {", ".join(of["config"]) or "unchanged"}
  files:    {len(of["copied"])} copied{not_copied}
{_last_line(of)}
"""


@examples("npu-rl weights convert V3-BF16 V3-mcore --layout deepseek-r1-zero-256die")
def convert(
    original: Input,
    target: NewFolder,
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout",
            metavar="RECIPE",
            help="The recipe whose trainer will load it: its stack's format, for its parallelism.",
        ),
    ] = None,
    to: Annotated[
        Literal["torch_dist", "hf"] | None, typer.Option("--format", help="The format, without a recipe.")
    ] = None,
    config: Config = None,
    extend: ExpertsOverTensor = True,
    workers: Workers = None,
    workspace: Workspace = None,
    python: Python = None,
    json: Json = False,
) -> None:
    """Convert a checkpoint for a trainer.

    It converts between Hugging Face's format, Megatron's torch_dist and its legacy format, one file at a time.
    Interrupted, the same command continues. Run `npu-rl weights audit IN OUT` afterwards.
    """
    from npu_rl.cli.progress import Weights
    from npu_rl.common.user_path import user_path
    from npu_rl.weights.checkpoints.convert_weights import ConvertOptions, convert_weights
    from npu_rl.weights.checkpoints.worker_pool import pool_of

    place, wanted = user_path(target).absolute(), _layout(layout, to)
    options = ConvertOptions(_checkpoint(original), place, wanted, _absolute(config), extend)
    if_interrupted(GOES_ON)
    with Weights("converting") as watch:
        report = convert_weights(options, pool_of(_interpreter(python, workspace), workers), watch)
    print_report(report, lambda: _converted_text(report), as_json=json)
    if not json:
        model = () if config is None else ("--model-config", config)
        dealt = () if extend else ("--no-moe-tp-extend-ep",)
        tell_next("weights", "audit", original, target, *model, *dealt, workspace=workspace)


def _layout(recipe: str | None, to: Literal["torch_dist", "hf"] | None) -> OutputLayout:
    from npu_rl.common.errors import UsageError
    from npu_rl.recipes.checkpoints.recipe_layout import recipe_layout
    from npu_rl.recipes.recipe.load_recipe import load_recipe
    from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout

    if recipe is not None and to is None:
        return recipe_layout(load_recipe(recipe))
    if to is not None and recipe is None:
        return OutputLayout(to)
    raise UsageError(
        "Exactly one of --layout and --format is needed",
        hint="Pass --layout RECIPE for the layout of a recipe's trainer, or --format hf for Hugging Face's.",
    )


def _converted_text(of: dict[str, Any]) -> str:
    ranks, kind = of["output"]["ranks"], of["output"]["format"]
    divided = f", TP{ranks['tensor']} PP{len(ranks['layers']) or ranks['stages']} EP{ranks['expert']}"
    lines = [
        f"{of['output']['path']}: {kind}{divided if kind == 'legacy' else ''}, {of['files']} files, "
        f"{of['bytes'] / 1e9:.1f} GB",
        f"  tensors:  {of['tensors']:,} of the model" + (f", as {of['stored']:,}" if kind != "hf" else ""),
        f"  memory:   tensors of {of['largest_in_memory'] / 1e9:.2f} GB at most, in each process",
    ]
    if of["mtp_left_out"]:
        lines.append(f"  left out: {len(of['mtp_left_out'])} tensors of multi-token prediction")
    for name in of["tied_left_out"]:
        lines.append(f"  left out: {name}, which equals the embeddings that it is tied to")
    if of["rounded"]:
        lines.append(f"  rounded:  {len(of['rounded'])} tensors, such as {of['rounded'][0]}")
    return "\n".join([*lines, _last_line(of)]) + "\n"


# -- audit --------------------------------------------------------------------------------------------


@examples("npu-rl weights audit DeepSeek-V3-Base V3-BF16   # what a cast made")
def audit(
    a: Annotated[Path, typer.Argument(metavar="FIRST", help="The folder of a checkpoint.")],
    b: Annotated[Path, typer.Argument(metavar="SECOND", help="The folder of what was made of it.")],
    config: Config = None,
    extend: ExpertsOverTensor = True,
    workers: Workers = None,
    workspace: Workspace = None,
    python: Python = None,
    json: Json = False,
) -> None:
    """Compare two checkpoints, value by value.

    Each may be a Hugging Face folder (FP8 too), Megatron's torch_dist or its legacy format. Fails if any value of the
    first (A) is not accounted for in the second (B), or B has more, or any value is NaN or infinite.
    """
    from npu_rl.cli.progress import Weights
    from npu_rl.weights.checkpoints.audit_text import audit_text
    from npu_rl.weights.checkpoints.audit_weights import AuditOptions, audit_weights
    from npu_rl.weights.checkpoints.worker_pool import pool_of

    command = shlex.join(["npu-rl", *sys.argv[1:]])
    options = AuditOptions(_checkpoint(a), _checkpoint(b), _absolute(config), extend, command)
    if_interrupted(STARTS_OVER)
    with Weights("comparing", "to compare") as watch:
        report = audit_weights(options, pool_of(_interpreter(python, workspace), workers), watch)
    print_report(report, lambda: audit_text(report), as_json=json)
    if report["result"] != "equal":
        raise typer.Exit(1)
    if not json:
        tell_next("weights", "check", b, "--write-hashes", workspace=workspace)


# -- check --------------------------------------------------------------------------------------------


@examples(
    "npu-rl weights check V3-BF16 --recipe deepseek-r1-zero-256die",
    "npu-rl weights check V3-BF16 --verify-hashes   # on every other node",
)
def check(
    checkpoint: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the checkpoint.")],
    overrides: Overrides = None,
    recipe: RecipeIfNamed = None,
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
    from npu_rl.common.errors import UsageError
    from npu_rl.recipes.checkpoints.checkpoint_of_recipe import CheckpointOfRecipe
    from npu_rl.weights.checkpoints.check_weights import check_weights, is_checkpoint
    from npu_rl.weights.checkpoints.checkpoint_findings import CheckedFolder
    from npu_rl.weights.checkpoints.worker_pool import pool_of

    if write and verify:
        raise UsageError("--write-hashes conflicts with --verify-hashes", hint="Give one of them.")
    if overrides and recipe is None:
        raise UsageError(
            "KEY=VALUE needs --recipe", where=overrides[0], hint="Name the recipe: --recipe NAME"
        )
    place = _checkpoint(checkpoint)
    loaded = None if recipe is None else judged.load(recipe, overrides or [], json)
    if_interrupted(STARTS_OVER)
    only_hashes = verify or (write and loaded is None and not is_checkpoint(place))
    pool = pool_of(None if only_hashes else _interpreter(python, workspace), workers)
    wanted = None if loaded is None else CheckpointOfRecipe(loaded)
    checked = CheckedFolder(place) if only_hashes else check_weights(place, pool, wanted)
    if verify or (write and checked.ok):
        checked.hashes = _hashes(place, pool.count, write)
    if json:
        print_json(checked)
    else:
        _say_checked(checked, write, only_hashes=only_hashes)
    if not checked.ok:
        raise SystemExit(1)
    if recipe is not None and not json:
        tell_next("plan", recipe, *(overrides or []), workspace=workspace)
    elif not (json or write or verify):
        tell_next("weights", "check", checkpoint, "--write-hashes", workspace=workspace)


def _hashes(folder: Path, count: int, write: bool) -> HashComparison:
    from npu_rl.cli.progress import Weights
    from npu_rl.weights.checkpoints.hash_list import bytes_to_read, verify_hashes, write_hashes

    with Weights("hashing", "to read") as watch:
        watch.begin(bytes_to_read(folder), 0)
        return (write_hashes if write else verify_hashes)(folder, count, watch.advance)


def _say_checked(checked: CheckedFolder, write: bool, *, only_hashes: bool) -> None:
    from npu_rl.cli import judged

    if not only_hashes:
        dtypes = ", ".join(f"{count} in {dtype}" for dtype, count in sorted(checked.dtypes.items()))
        megatron = checked.format != "hf"
        shards = (
            f"Megatron's {checked.format}, {checked.shards} files" if megatron else f"{checked.shards} shards"
        )
        if checked.bytes:
            say(f"{checked.folder}: {shards}, {checked.bytes / 1e9:.1f} GB; tensors: {dtypes or 0}")
        judged.say_findings(checked.findings)
        if checked.unchecked:
            say(f"not checked: names and shapes of the tensors: {checked.unchecked}")
        elif checked.ok and not megatron:
            say(f"names and shapes are those of {checked.model} of transformers {checked.transformers}")
    errors, hashes = sum(found.severity.value == "error" for found in checked.findings), checked.hashes
    if hashes is not None:
        lists = {"changed": hashes.changed, "missing": hashes.missing, "not in the list": hashes.extra}
        for what, names in lists.items():
            for name in names:
                say(f"{what}: {name}")
        done = "written" if write else "verified" if hashes.ok else "compared"
        say(f"hashes of {hashes.files} files {done}, {hashes.bytes / 1e9:.1f} GB read")
        errors += len(hashes.changed) + len(hashes.missing)
    elif write:
        say("hashes not written")
    say(error_count(errors))


# -- export -------------------------------------------------------------------------------------------


@examples("npu-rl weights export quickstart step-40 --step 40   # else the newest checkpoint")
def export(
    run: Run,
    out: NewFolder,
    step: Annotated[
        int | None,
        typer.Option(
            "--step", min=0, metavar="N", help="The checkpoint of this step.  [default: the newest]"
        ),
    ] = None,
    config: Config = None,
    extend: ExpertsOverTensor = True,
    workers: Workers = None,
    workspace: Workspace = None,
    python: Python = None,
    json: Json = False,
) -> None:
    """Export a run's checkpoint to safetensors.

    FSDP's and Megatron's checkpoints become a Hugging Face folder, with config.json and tokenizer. Each value is
    compared with the checkpoint before OUT appears. The model names its run, step, recipe, lock and tree.
    """
    from npu_rl.cli.progress import Weights
    from npu_rl.cli.runs import find_record
    from npu_rl.common.user_path import user_path
    from npu_rl.training.record.saved_checkpoints.run_checkpoint import (
        explained_while_running,
        run_checkpoint,
    )
    from npu_rl.training.run.export_run import ExportOptions, export_run
    from npu_rl.weights.checkpoints.worker_pool import pool_of

    chosen = _interpreter(python, workspace)
    record = find_record(run, workspace)
    with explained_while_running(record):
        checkpoint = run_checkpoint(record, step, _absolute(config))
        if record.is_locked:
            tell(f"Run {record.name} is going on. Exporting its checkpoint of step {checkpoint.step}")
        command = shlex.join(["npu-rl", *sys.argv[1:]])
        options = ExportOptions(checkpoint, user_path(out).absolute(), extend, command)
        if_interrupted(STARTS_OVER)
        with Weights("exporting") as watch:
            report = export_run(options, pool_of(chosen, workers), watch)
    print_report(report, lambda: _exported_text(report), as_json=json)
    if not json:
        tell_next("weights", "check", out, workspace=workspace)


def _exported_text(of: dict[str, Any]) -> str:
    values = ", ".join(f"{count:,} in {dtype}" for dtype, count in of["values"].items())
    compared = of["audit"]["compared"]
    audited = f"{compared['tensors']:,} tensors, {compared['values']:,} values"
    unproven = "" if of["proven"] else f"  unproven: {of['unproven']}\n"
    return f"""\
{of["output"]}: {of["run"]}, step {of["step"]}, {of["shards"]} shards, {of["bytes"] / 1e9:.1f} GB
  from:    {of["checkpoint"]["path"]} ({of["checkpoint"]["format"]})
  tensors: {of["tensors"]:,}; values: {values}
  config:  {", ".join(of["config"]) or "unchanged"}
  audit:   {of["audit"]["result"]}: {audited}
  lock:    {of["lock"] or "not recorded"}
{unproven}Done in {of["seconds"]:.1f} s.
"""
