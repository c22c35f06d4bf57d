"""The page docs/commands.md, from what `npu-rl COMMAND --help` prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_INTRODUCTION = """\
# Commands

Written by `.ci/regenerate` from the `--help` of each command.

Every command has `--help`, with its options and examples, and `-v`, which prints each git command with its time and
outcome. `-w`, `--workspace DIR` names a workspace other than the one here; `--json` prints one document for programs,
which [JSON](json.md) describes. `npu-rl --install-completion` sets up completion of your shell.

The exit code is 0 if the command has done its work. It is 1 if it failed, also because its output could not be written;
2 if it was called wrongly; and 3 if the workspace or the host is not what it should be. After Ctrl-C, SIGTERM and a
hang-up it is 130, 143 and 129. A signal that the caller ignores, as under `nohup`, stays ignored.

npu-rl logs all git commands, without secrets, in `npu-rl/git.log` below `$XDG_STATE_HOME` or `~/.local/state`, in five
files of 1 MB at most. Errors of git and unexpected errors name that log.
"""
_EVERYWHERE = {"help", "verbose"}


def command_page() -> str:
    """Return the page: a table of all commands, then each with its arguments, options and examples."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    import typer

    from npu_rl.cli.app import app

    commands = list(_commands(typer.main.get_command(app), ()))
    yield _INTRODUCTION
    yield "| command | what it does |"
    yield "|---|---|"
    for name, command in commands:
        yield f"| [`npu-rl {name}`](#npu-rl-{name.replace(' ', '-')}) | {_cell(_summary(command))} |"
    for name, command in commands:
        yield from _section(name, command)


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name in group.commands:
        command = group.get_command(None, name)
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def _section(name: str, command: Any) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    yield f"\n## npu-rl {name}\n"
    yield f"`npu-rl {' '.join([name, *command.collect_usage_pieces(context)])}`\n"
    yield " ".join(_text(command.help).split())
    rows = [
        row
        for one in command.get_params(context)
        if one.name not in _EVERYWHERE and (row := one.get_help_record(context))
    ]
    if rows:
        yield "\n| argument or option | meaning |"
        yield "|---|---|"
        for words, meaning in rows:
            yield f"| `{_cell(words)}` | {_cell(meaning)} |"
    lines = [line.strip() for line in (command.epilog or "").replace("\b", "").splitlines()]
    examples = [line for line in lines if line.startswith("npu-rl ")]
    if examples:
        yield "\n<!-- not run: tests/cli/test_help.py parses each -->\n```sh"
        yield from examples
        yield "```"


def _summary(command: Any) -> str:
    return " ".join(_text(command.help).partition("\n\n")[0].split())


def _text(help_text: str) -> str:
    return help_text.replace("\f", "").replace("\b", "")


def _cell(text: str) -> str:
    """Text for one cell: without line breaks, its brackets and bars escaped."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()
