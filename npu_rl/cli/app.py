"""The commands, in the order of work. The options of each are in its own file."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import npu_rl
from npu_rl.cli.command_group import HIDDEN, block, lazy

app = typer.Typer(
    name="npu-rl",
    cls=lazy(
        {
            "setup": "setup:setup",
            "verify": "verify:verify",
            "plan": "plan:plan",
            "doctor": "doctor:doctor",
            "train": "train:train",
            "runs": "runs:app",
            "report": "report:report",
            "status": "status:status",
            "diff": "diff:diff",
            "summary": "summary:summary",
            "faults": "faults:faults",
            "lock": "lock:lock",
            "weights": "weights:app",
            "requirements": "requirements:requirements",
            "manifests": "manifests:app",
            "recipes": "recipes:app",
            "data": "data:app",
            "patches": "patches:app",
            "bundle": "bundle:app",
            "store": "store:app",
            "list": f"{HIDDEN}older_spellings:list_bundled",
            "schema": f"{HIDDEN}older_spellings:schema",
        }
    ),
    help="Build one source tree for RL post-training on Ascend NPUs, prove it, and train with it.",
    epilog="\n\n".join(
        (
            block(
                "Examples",
                (
                    "npu-rl setup --manifest quickstart   # a tree for this machine's CPU",
                    "npu-rl verify                        # it equals its lock",
                    "npu-rl train quickstart              # train a tiny model in it",
                ),
            ),
            block(
                "Exit codes",
                (
                    "0  done",
                    "1  failed: an invalid file, source, patch or run; a recipe that does not fit",
                    "2  wrong usage: an unknown option, an option without its value",
                    "3  the workspace differs from its lock, or this machine lacks something",
                    "129, 130, 143  ended by SIGHUP, SIGINT (Ctrl-C), SIGTERM",
                ),
            ),
        )
    ),
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)
    ] = False,
) -> None:
    if version:
        print(f"npu-rl {npu_rl.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        if sys.argv[1:]:  # npu-rl -v
            context.fail("Missing command.")
        print(context.get_help())
