"""The commands `npu-rl data`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.options import DatasetName, Json, NamedRecipe, Overrides, Python, Tokenizer, Workspace
from npu_rl.cli.progress import Bars, require_proven
from npu_rl.cli.show import (
    STARTS_OVER,
    amount,
    error_count,
    if_interrupted,
    print_json,
    say,
    tell,
    tell_next,
)

if TYPE_CHECKING:
    from npu_rl.data.data_check.check_data import Checked
    from npu_rl.data.datasets.prepare_dataset import PreparedFiles, Wanted
    from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths

app = group(
    "Prepare and check training data.",
    {"get": "get:data", "prepare": "data:prepare", "check": "data:check"},
)

# -- prepare ------------------------------------------------------------------------------------------


@examples("npu-rl data prepare gsm8k --input a.jsonl --test b.jsonl --output gsm8k")
def prepare(
    dataset: DatasetName,
    input: Annotated[
        Path,
        typer.Option(
            "--input", metavar="FILE", help="The downloaded file: a JSON array, JSON lines or Parquet."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="A new folder for train.parquet and test.parquet.")
    ],
    test: Annotated[
        Path | None,
        typer.Option(
            "--test", metavar="FILE", help="The dataset's own test file, in place of --test-fraction."
        ),
    ] = None,
    template: Annotated[
        Literal["boxed", "r1-zero", "hashes", "plain"] | None,
        typer.Option("--template", help="Prompt template.  [default: the one that fits the reward]"),
    ] = None,
    valid: Annotated[
        float,
        typer.Option(
            "--test-fraction",
            metavar="SHARE",
            help="The share of the problems that goes to test.parquet.",
        ),
    ] = 0.1,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", min=0, max=2**64 - 1, metavar="N", help="Choose other problems for test.parquet."
        ),
    ] = 0,
    trainer: Annotated[
        Literal["verl", "mindspeed-rl"],
        typer.Option("--for", help="The trainer; mindspeed-rl needs --tokenizer and its workspace."),
    ] = "verl",
    tokenizer: Tokenizer = None,
    max_prompt_length: Annotated[
        int,
        typer.Option(
            "--max-prompt-length",
            min=0,
            metavar="N",
            help="Count prompts with more than N tokens.  [default: 0, none]",
            show_default=False,
        ),
    ] = 0,
    workspace: Workspace = None,
    python: Python = None,
    again: Annotated[
        bool, typer.Option("--overwrite", help="Move aside what this command has made in DIR before.")
    ] = False,
    json: Json = False,
) -> None:
    """Make Parquet files of a dataset.

    They are what verl loads. Repeated rows and rows without a problem or an answer are left out; prepared.json lists
    them by index.
    """
    from npu_rl.common.user_path import user_path
    from npu_rl.data.datasets.parquet_rows import UNLIMITED
    from npu_rl.data.datasets.prepare_dataset import REPORT, prepare_dataset, wanted_of
    from npu_rl.data.datasets.staged_folder import staged_folder

    wanted = wanted_of(dataset, template, input, test, valid, seed)
    folder = user_path(output, "--output").absolute()
    convert, count_tokens = None, None
    if trainer == "mindspeed-rl":
        convert = _converter(template, tokenizer, max_prompt_length, workspace, python)
    else:
        count_tokens = _token_counter(tokenizer, max_prompt_length, workspace, python)
    if_interrupted(STARTS_OVER)
    if UNLIMITED:
        tell(UNLIMITED)
    with staged_folder(folder, REPORT, again=again, notify=tell) as staging, Bars() as bars:
        prepared = prepare_dataset(
            wanted,
            staging,
            lambda done: bars.move(dataset, f"{100 * done:.0f} % of {wanted.input}", done),
            count_tokens,
            convert,
        )
    if json:
        print_json(prepared)
    else:
        _say_prepared(wanted, prepared, folder / REPORT)
        tell_next("data", "check", output, "--recipe", "RECIPE", workspace=workspace)


def _token_counter(
    tokenizer: Path | None, limit: int, workspace: Path | None, python: str | None
) -> Callable[[list[Path]], dict[str, Any]] | None:
    """Return a function that counts the prompts' tokens; None without a tokenizer."""
    from npu_rl.common.errors import UsageError
    from npu_rl.data.data_check.prompt_lengths import prompt_lengths

    if workspace is not None:
        why = "Parquet files are made without a workspace."
        raise UsageError(
            "--workspace has no effect without --for mindspeed-rl", why=why, hint="Leave it out."
        )
    if tokenizer is None and not (limit or python):
        return None
    folder = _tokenizer_folder(tokenizer, "--max-prompt-length" if limit else "--python")
    return lambda files: prompt_lengths(python or sys.executable, folder, files, limit)


def _converter(
    template: str | None, tokenizer: Path | None, limit: int, workspace: Path | None, python: str | None
) -> Callable[[list[Path]], dict[str, int]]:
    """Return a function that makes MindSpeed-RL's files with the preprocessor of the workspace's tree."""
    from npu_rl.common.errors import UsageError
    from npu_rl.data.data_check.mindspeed_rl_files import preprocess, require_preprocessor
    from npu_rl.workspace.folder.chosen_interpreter import choose
    from npu_rl.workspace.folder.discovery import open_workspace

    for option, given in (("--template", template), ("--max-prompt-length", limit)):
        if given:
            raise UsageError(
                f"{option} has no effect with --for mindspeed-rl",
                why="The tree's own configuration has the template: configs/datasets/deepscaler.yaml.",
                hint=f"Leave {option} out.",
            )
    folder = _tokenizer_folder(tokenizer, "--for mindspeed-rl")
    layout = open_workspace(workspace, tell)
    require_proven(layout, "its preprocessor may make other files")
    require_preprocessor(layout.code)
    chosen = choose(python, layout)
    return lambda files: preprocess(layout.code, chosen, folder, files)


def _tokenizer_folder(tokenizer: Path | None, option: str) -> Path:
    """Return the folder of --tokenizer, which must have one. Raises UsageError if the option is missing."""
    from npu_rl.common.errors import UsageError
    from npu_rl.common.user_path import user_path
    from npu_rl.data.data_check.prompt_lengths import require_tokenizer

    if tokenizer is None:
        raise UsageError(f"{option} needs a tokenizer", hint="Pass --tokenizer DIR, the model's folder.")
    folder = user_path(tokenizer, "--tokenizer").absolute()
    require_tokenizer(folder)
    return folder


def _say_prepared(wanted: Wanted, prepared: PreparedFiles, report: Path) -> None:
    for name, facts in prepared.files.items():
        place = report.with_name(name)
        say(f"{place}  {facts['rows']} rows, {amount(facts['bytes'])}, sha256 {facts['sha256']}")
    read, left_out = sum(prepared.read.values()), ", ".join(prepared.left_out()) or "none"
    say(f"{read} rows read; left out: {left_out}. Listed in {report}")
    if prepared.lengths:
        limit = prepared.lengths["limit"]
        for name, counts in prepared.lengths["files"].items():
            over = f"; {counts['overlong']} have more than {limit}" if limit else ""
            say(f"{name}: {counts['mean']} tokens per prompt on average, {counts['longest']} at most{over}")
    if wanted.test_input is None:
        say("Leakage: no problem is in both files, which is how they are split.")
    elif prepared.leaked:
        say(f"Leakage: {len(prepared.leaked)} problems of test.parquet are in train.parquet, too.")
    else:
        say("Leakage: no problem of test.parquet is in train.parquet.")
    template, dataset = wanted.template, wanted.dataset
    if prepared.template and template.asks_for != dataset.looks_for:
        asked = template.asks_for or "no form of answer"
        tell(
            f"note: the template {template.name} asks for {asked}; verl's reward for {dataset.data_source} "
            f"expects {dataset.looks_for}"
        )


# -- check --------------------------------------------------------------------------------------------


@examples("npu-rl data check ds --recipe deepseek-r1-zero-256die --tokenizer model")
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that data prepare made.")],
    recipe: NamedRecipe,
    overrides: Overrides = None,
    tokenizer: Tokenizer = None,
    workspace: Workspace = None,
    python: Python = None,
    json: Json = False,
) -> None:
    """Check training data against a recipe.

    It checks columns, rows, data sources, the instructions in the prompts and their lengths, and runs the recipe's
    reward on right, wrong and empty responses. The exit code is 1 if the training could not use the data.
    """
    from npu_rl.cli import judged
    from npu_rl.common.user_path import user_path
    from npu_rl.data.data_check.check_data import data_findings
    from npu_rl.data.data_check.gather import gather
    from npu_rl.workspace.folder.discovery import open_workspace_if_any

    loaded = judged.load(recipe, overrides or [], json)
    paths = open_workspace_if_any(workspace, tell)
    if paths is not None:
        _require_same_manifest(loaded, paths)
        require_proven(paths, "its reward may not be that of a run")
    named = user_path(tokenizer, "--tokenizer").absolute() if tokenizer else None
    place = user_path(folder, "DIR").absolute()
    if_interrupted(STARTS_OVER)
    checked = gather(loaded, place, paths, python, named, tell)
    checked.findings = data_findings(loaded, checked)
    if json:
        print_json(checked)
    else:
        _say_checked(checked)
    if not checked.ok:
        raise SystemExit(1)
    if not json:
        tell_next("plan", recipe, *(overrides or []), workspace=workspace)


def _require_same_manifest(loaded: LoadedRecipe, paths: WorkspacePaths) -> None:
    from npu_rl.common.errors import UsageError
    from npu_rl.workspace.folder.locked_manifest import stack_of

    wanted, stack = loaded.manifest_name, stack_of(paths)
    if loaded.in_stack(stack).stack is None:
        raise UsageError(
            f"The recipe is for the manifest {wanted}, and the workspace is {stack.name}",
            where=str(paths.root),
            hint=f"Name a workspace of {wanted}: --workspace DIR",
        )


def _say_checked(checked: Checked) -> None:
    from npu_rl.cli import judged
    from npu_rl.common.yaml_documents.finding import Severity

    lengths = (checked.lengths or {"files": {}})["files"]
    for file in checked.files:
        sources = ", ".join(f"{count} of {source}" for source, count in sorted(file.sources.items()))
        say(f"{file.path}: {file.rows} rows" + (f"; {sources}" if sources else ""))
        if counts := lengths.get(file.path.name):
            say(f"  tokens per prompt: {counts['mean']} on average, {counts['longest']} at most")
    first = {one.data_source: one for one in reversed(checked.trials)}
    for trial in first.values():
        scores = ", ".join(
            f"{name} {score if isinstance(score, float) else 'raises'}"
            for name, score in trial.scores.items()
        )
        say(f"reward for {trial.data_source}, right answer {trial.truth!r}: {scores}")
    judged.say_findings(checked.findings)
    for what, why in checked.unchecked.items():
        say(f"not checked: {what}: {why}")
    say(error_count(sum(one.severity is Severity.ERROR for one in checked.findings)))
