"""The command `npu-rl data`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from npu_rl.cli.command_group import examples, group
from npu_rl.cli.next_steps import STARTS_OVER, if_interrupted, tell_next
from npu_rl.cli.options import Json, Python, Tokenizer, Workspace, dataset_names
from npu_rl.cli.show import LiveWatcher, amount, print_json, say, tell
from npu_rl.common.errors import UsageError
from npu_rl.common.user_path import existing_file, user_path

if TYPE_CHECKING:
    from npu_rl.data.datasets.prepare_dataset import PreparedFiles, Wanted

app = group(
    "Prepare and check training data.",
    {
        "get": "get:data",
        "prepare": "data:prepare",
        "check": "data_check:check",
    },
    "npu-rl data get deepscaler",
    "npu-rl data prepare deepscaler --input deepscaler.json --output ds",
    "npu-rl data check ds --recipe deepseek-r1-zero-256die",
)


class ForTrainer(str, Enum):
    """The trainer that the files are for."""

    verl = "verl"
    mindspeed_rl = "mindspeed-rl"


def _templates() -> list[str]:
    from npu_rl.data.datasets.prompt_templates import TEMPLATES

    return list(TEMPLATES)


@examples(
    "npu-rl data prepare deepscaler --input deepscaler.json --output ds",
    "npu-rl data prepare gsm8k --input a.jsonl --test b.jsonl --output gsm8k",
    "npu-rl data prepare math-lighteval --input a.parquet --output m --seed 1",
)
def prepare(
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATASET",
            help="Dataset: deepscaler, gsm8k or math-lighteval.",
            autocompletion=dataset_names,
        ),
    ],
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
        str | None,
        typer.Option(
            "--template",
            metavar="NAME",
            help="Prompt template: boxed, r1-zero, hashes or plain.  [default: the one that fits the reward]",
            autocompletion=_templates,
        ),
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
        int, typer.Option("--seed", min=0, metavar="N", help="Choose other problems for test.parquet.")
    ] = 0,
    trainer: Annotated[
        ForTrainer,
        typer.Option("--for", help="The trainer; mindspeed-rl needs --tokenizer and its workspace."),
    ] = ForTrainer.verl,
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
        bool,
        typer.Option(
            "--overwrite",
            help="Move aside what this command has made in DIR before.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Make Parquet files of a dataset.

    They are what verl loads. Repeated rows and rows without a problem or an answer are left out;
    prepared.json lists them by index.
    """
    from npu_rl.data.datasets.parquet_rows import UNLIMITED
    from npu_rl.data.datasets.prepare_dataset import REPORT, prepare_dataset
    from npu_rl.data.datasets.staged_folder import staged_folder

    wanted = _wanted(dataset, template, input, test, valid, seed)
    folder = user_path(output, "--output").absolute()
    if trainer is ForTrainer.mindspeed_rl:
        convert = _converter(template, tokenizer, max_prompt_length, workspace, python)
        count_tokens = None
    else:
        _refuse_workspace(workspace)
        convert = None
        count_tokens = _token_counter(tokenizer, max_prompt_length, python)
    if_interrupted(STARTS_OVER)
    if UNLIMITED:
        tell(UNLIMITED)
    with staged_folder(folder, REPORT, again=again, notify=tell) as staging:
        prepared = _with_progress(
            wanted, lambda progress: prepare_dataset(wanted, staging, progress, count_tokens, convert)
        )
    if json:
        print_json({"folder": str(folder), **asdict(prepared)})
    else:
        _say_prepared(wanted, prepared, folder)
        tell_next("data", "check", output, "--recipe", "RECIPE", workspace=workspace)


def _refuse_workspace(workspace: Path | None) -> None:

    if workspace is not None:
        raise UsageError(
            "--workspace has no effect without --for mindspeed-rl",
            why="Parquet files are made without a workspace.",
            hint="Leave it out, or add --for mindspeed-rl.",
        )


def _token_counter(
    tokenizer: Path | None, limit: int, python: str | None
) -> Callable[[list[Path]], dict[str, Any]] | None:
    """Return a function that counts the prompts' tokens; None without a tokenizer."""
    from npu_rl.data.data_check.prompt_lengths import prompt_lengths

    if tokenizer is None and not (limit or python):
        return None
    folder = _tokenizer_folder(tokenizer, "--max-prompt-length" if limit else "--python")
    return lambda files: prompt_lengths(python or sys.executable, folder, files, limit)


def _converter(
    template: str | None, tokenizer: Path | None, limit: int, workspace: Path | None, python: str | None
) -> Callable[[list[Path]], dict[str, int]]:
    """Return a function that makes MindSpeed-RL's files with the preprocessor of the workspace's tree."""
    from npu_rl.cli import proving
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
    proving.require_proven(layout, "its preprocessor may make other files")
    require_preprocessor(layout.code)
    chosen = choose(python, layout)
    return lambda files: preprocess(layout.code, chosen, folder, files)


def _tokenizer_folder(tokenizer: Path | None, option: str) -> Path:
    """Return the folder of --tokenizer, which must have one. Raises UsageError if the option is missing."""
    from npu_rl.data.data_check.prompt_lengths import require_tokenizer

    if tokenizer is None:
        raise UsageError(f"{option} needs a tokenizer", hint="Pass --tokenizer DIR, the model's folder.")
    folder = user_path(tokenizer, "--tokenizer").absolute()
    require_tokenizer(folder)
    return folder


def _wanted(
    dataset: str, template: str | None, input: Path, test: Path | None, valid: float, seed: int
) -> Wanted:
    from npu_rl.data.datasets.known_datasets import DATASETS
    from npu_rl.data.datasets.prepare_dataset import Wanted
    from npu_rl.data.datasets.prompt_templates import TEMPLATES

    if dataset not in DATASETS:
        raise UsageError(
            f"Unknown dataset {dataset!r}", hint=f"Write one of: {', '.join(DATASETS)}", where="DATASET"
        )
    known = DATASETS[dataset]
    if template is not None and template not in TEMPLATES:
        listed = "\n".join(f"{name}: {one.summary}" for name, one in TEMPLATES.items())
        raise UsageError(
            f"Unknown template {template!r}", where="--template", hint=f"Write one of:\n{listed}"
        )
    if not 0 < valid < 1:
        raise UsageError(
            f"--test-fraction {valid} is not a share",
            hint="Write a number between 0 and 1, such as 0.1.",
        )
    if seed >= 2**64:
        raise UsageError(f"--seed {seed} is too large", hint="Write a number below 2**64.")
    own_test = existing_file(test, "--test") if test else None
    read = existing_file(input, "--input")
    if own_test is not None and own_test.name == read.name:
        raise UsageError(
            "--input and --test have the same file name",
            where=read.name,
            why="The report lists rows by file name and index.",
            hint="Rename one of them.",
        )
    return Wanted(known, TEMPLATES[template or known.template], read, own_test, valid, seed)


def _with_progress(wanted: Wanted, work: Callable[[Callable[[float], None]], PreparedFiles]) -> PreparedFiles:
    """Do the work with a progress bar on a terminal, and with a line per quarter elsewhere."""
    name, said = wanted.dataset.name, [0]

    def tell_quarter(done: float) -> None:
        if int(done * 4) > said[0]:
            said[0] = int(done * 4)
            tell(f"{name}: {25 * said[0]} % read")

    if not sys.stderr.isatty():
        return work(tell_quarter)
    with LiveWatcher() as watching:
        watching.begin(name, str(wanted.input))
        return work(lambda done: watching.advance(name, f"{100 * done:.0f} % of {wanted.input}", done))


def _say_prepared(wanted: Wanted, prepared: PreparedFiles, folder: Path) -> None:
    from npu_rl.data.datasets.prepare_dataset import REPORT

    for name, facts in prepared.files.items():
        say(f"{folder / name}  {facts['rows']} rows, {amount(facts['bytes'])}, sha256 {facts['sha256']}")
    read, left_out = sum(prepared.read.values()), ", ".join(prepared.left_out()) or "none"
    say(f"{read} rows read; left out: {left_out}. Listed in {folder / REPORT}")
    for name, counts in (prepared.lengths or {"files": {}})["files"].items():
        limit = prepared.lengths["limit"] if prepared.lengths else None
        over = f"; {counts['overlong']} have more than {limit}" if limit else ""
        say(f"{name}: {counts['mean']} tokens per prompt on average, {counts['longest']} at most{over}")
    if wanted.test_input is None:
        say("Leakage: no problem is in both files, which is how they are split.")
    elif prepared.leaked:
        say(f"Leakage: {len(prepared.leaked)} problems of test.parquet are in train.parquet, too.")
    else:
        say("Leakage: no problem of test.parquet is in train.parquet.")
    if prepared.template and wanted.template.asks_for != wanted.dataset.looks_for:
        template, dataset = wanted.template, wanted.dataset
        asked = template.asks_for or "no form of answer"
        tell(
            f"note: the template {template.name} asks for {asked}; verl's reward for {dataset.data_source} "
            f"expects {dataset.looks_for}"
        )
