"""What messages tell people to do: keys are a recipe's, options exist, nothing replaces the host's torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import npu_rl

ROOT = Path(npu_rl.__file__).parent


@cache
def texts() -> list[tuple[str, str]]:
    """Every text of the program that is no docstring, as `file:line` and what is constant in it."""
    return [text for path in sorted(ROOT.rglob("*.py")) for text in _texts(path)]


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    name = path.relative_to(ROOT)
    nodes = list(ast.walk(ast.parse(path.read_text())))
    others = {
        node.body[0].value
        for node in nodes
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    others |= {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "NAME" for part in node.values]
            yield f"{name}:{node.lineno}", "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in others:
            yield f"{name}:{node.lineno}", node.value


def _commands() -> Any:
    from typer.main import get_command

    from npu_rl.cli.app import app

    return get_command(app)


def _said_commands() -> list[tuple[str, str]]:
    """`npu-rl COMMAND ...` as messages write it, up to the end of the words that can be a command line."""
    word = r"(?:--?[a-z][a-z-]*(?:[= ](?!-)[A-Z'/.][^\s,;:`]*)?|[A-Z][A-Z.]*|NAME|[a-z]+(?![\w.']))"
    pattern = re.compile(
        r"npu-rl ((?:train|setup|verify|plan|summary|recipes|manifests|patches|status|diff|lock|store)"
        rf"(?: {word})*)"
    )
    return [(where, match[1]) for where, text in texts() for match in pattern.finditer(text)]


@pytest.mark.second
def test_the_commands_and_options_that_messages_name_exist() -> None:
    top = _commands()
    said = _said_commands()
    assert len(said) > 20
    for where, line in said:
        words = line.split()
        command = top.get_command(None, words[0])
        if hasattr(command, "commands") and len(words) > 1 and words[1] in command.commands:
            command = command.get_command(None, words[1])
        options = {
            name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)
        }
        given = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert given <= {*options, "--help"}, f"{where}: npu-rl {line}"
        lacking = [
            parameter.opts[0]
            for parameter in command.params
            if parameter.required and "-" in parameter.opts[0] and not given & {*parameter.opts}
        ]
        assert not given or not lacking, f"{where}: npu-rl {line} lacks {lacking}"


PLACES_OF_THE_EXTRA_DATA = ("data/data_check/prompt_lengths.py", "data/datasets/parquet_support.py")


@pytest.mark.second
def test_no_command_lets_pip_choose_a_torch() -> None:
    """But in the one place that knows that there is no torch_npu, for npu-rl alone, and where versions are given."""
    may = (
        *("runtime/deepscaler/", *PLACES_OF_THE_EXTRA_DATA, "training/run/training_interpreter.py"),
        "stack/bundles/create_bundle.py",
    )
    installing = [(where, text) for where, text in texts() if "pip install" in text]
    assert len(installing) > 5
    assert [
        where for where, text in installing if "--no-deps" not in text and not where.startswith(may)
    ] == []
    assert [where for where, text in installing if "torch==" in text] == []
