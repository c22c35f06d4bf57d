"""The commands, by what they are for. The options of each are in its own file."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

import npu_rl
from npu_rl.cli.command_group import lazy, summary

_SECTIONS = {
    "start": {
        "setup": "setup:setup",
        "verify": "workspace:verify",
        "status": "workspace:status",
        "doctor": "doctor:doctor",
    },
    "run": {
        "plan": "plan:plan",
        "train": "train:train",
        "runs": "runs:app",
        "report": "runs:report",
        "recipes": "recipes:app",
        "data": "data:app",
        "weights": "weights:app",
    },
    "patch": {
        "diff": "workspace:diff",
        "patches": "patches:app",
        "lock": "lock:lock",
        "summary": "summary:summary",
        "faults": "faults:faults",
        "manifests": "manifests:app",
    },
    "operate": {
        "requirements": "operate:requirements",
        "bundle": "operate:bundle",
        "store": "operate:store",
    },
}


class _Top(lazy({name: place for section in _SECTIONS.values() for name, place in section.items()})):  # type: ignore[misc]
    """The program, whose help is one screen of 24 lines: docs/commands.md has the rest."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the usage, the purpose, and a line for each command, by section."""
        usage = "[--help] [--version] [--install-completion] COMMAND [ARGS]..."
        formatter.write_usage(ctx.command_path, usage)
        formatter.write(f"\n{self.help}\n\n")
        for section, table in _SECTIONS.items():
            for number, (name, place) in enumerate(table.items()):
                formatter.write(f"{'' if number else section:<8} {name:<13} {summary(place)}\n")


app = typer.Typer(
    name="npu-rl",
    cls=_Top,
    help="Build one source tree for RL post-training on Ascend NPUs, prove it, train with it.",
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
