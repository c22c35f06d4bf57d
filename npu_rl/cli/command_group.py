"""Groups of commands that import a command's file on demand, so that the others don't slow down the start."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

_Function = TypeVar("_Function", bound=Callable[..., None])
_EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {}


def examples(*lines: str) -> Callable[[_Function], _Function]:
    """Show these command lines below the help of a command. `  # ` starts a comment on a line."""

    def note(function: _Function) -> _Function:
        _EXAMPLES[function] = lines
        return function

    return note


class Command(TyperCommand):
    """A command that accepts -v and logs its git commands."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params.append(_verbose())

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line's words: RECIPE for an argument that typer writes as {RECIPE}."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def invoke(self, ctx: Any) -> Any:
        """Run the command between the first and the last entry in the log of git commands."""
        from npu_rl.stack.git import command_log

        command_log.begin(sys.argv[1:])
        started = time.monotonic()
        try:
            return super().invoke(ctx)
        finally:
            command_log.end(time.monotonic() - started)


class LazyGroup(TyperGroup):
    """A group whose `table` names the function of each command; see `lazy`."""

    table: Mapping[str, str] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = dict.fromkeys(self.table)  # for suggestions; `get_command` makes each
        self.params.append(_verbose())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Import a command's file and return the command; None for an unknown name."""
        return _command(cmd_name, self.table[cmd_name]) if cmd_name in self.table else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by their summaries, without building their options (a sixth of `--help`'s time)."""
        listed: dict[str, Any] = {
            name: TyperCommand(name, help=summary(place)) for name, place in self.table.items()
        }
        TyperGroup(commands=listed).format_commands(ctx, formatter)


def lazy(table: Mapping[str, str]) -> type[LazyGroup]:
    """Return a class for a group of commands: name -> "module:function" of npu_rl.cli."""
    return type("Group", (LazyGroup,), {"table": table})


def group(help: str, table: Mapping[str, str]) -> typer.Typer:
    """Return a group of commands within npu-rl's; see `lazy`."""
    return typer.Typer(
        cls=lazy(table),
        help=help,
        callback=lambda: None,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
    )


def summary(place: str) -> str:
    """Return the first sentence of a command's or a group's help."""
    found = _found(place)
    text = found.info.help if isinstance(found, typer.Typer) else found.__doc__
    return str(text).partition("\n")[0]


def _found(place: str) -> Any:
    """Return the function of a command, or the Typer of a group."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(f"npu_rl.cli.{module}"), attribute)


@cache
def _command(name: str, place: str) -> Any:
    """Return a command, built once per process: the tests call some thousand in one process."""
    found = _found(place)
    if isinstance(found, typer.Typer):
        group = typer.main.get_command(found)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    lines = _EXAMPLES.get(found)
    epilog = "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in lines)]) if lines else None
    alone.command(name, cls=Command, epilog=epilog)(found)
    return typer.main.get_command(alone)


def _verbose() -> TyperOption:
    return TyperOption(
        param_decls=["--verbose", "-v"],
        is_flag=True,
        default=False,
        expose_value=False,
        is_eager=True,
        callback=_be_verbose,
        help="Print the git commands that run, with their times and outcomes.",
    )


def _be_verbose(_context: Any, _option: Any, value: bool) -> None:
    if value:
        from npu_rl.cli.show import tell
        from npu_rl.stack.git import command_log

        command_log.echo = tell
