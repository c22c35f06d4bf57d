"""Bundled recipes against where their values are from: the tables of a sources file, and published scripts."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import yaml

from npu_rl.common.bundled import bundled_recipes, data_root
from npu_rl.common.yaml_documents.document_kind import MANIFEST, RECIPE
from npu_rl.common.yaml_documents.yaml_reader import read_yaml
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.recipe_fields import read_scalar

NAMES = {"schema", "name", "title"}
"""Keys that say what the file is, not what is run."""
_ROW = re.compile(r"\| `(.+?)` \| `(.+)` \| (\w+) \| (.*?) ?\|")
# Where the scripts' loops and commands are of the machine; none of its own commands is found.
_STUBS = """
set +eu; HOME=/home/you; mkdir() { :; }; sed() { :; }; ulimit() { :; }; date() { :; }
tee() { while read -r line; do echo "$line"; done; }
python3() { [ "$1" = -m ] || return 0; printf '%s\\n' "$@"; }
python() { printf '%s\\n' "$@"; }
"""


def said(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each key of a recipe's text with its value; lists are values."""
    for name, value in data.items():
        if isinstance(value, dict):
            yield from said(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def written(name: str) -> dict[str, Any]:
    """The values that a bundled recipe's own file sets."""
    text = read_yaml(bundled_recipes()[name].read_bytes(), name, RECIPE).data
    return {key: value for key, value in said(text) if key not in NAMES}


def changed(name: str, other: str) -> set[str]:
    """The keys that two recipes have otherwise, what they extend counted in."""
    before, after = dict(said(load_recipe(name).data)), dict(said(load_recipe(other).data))
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def sources(file: str) -> str:
    return (data_root() / "recipes" / f"{file}.sources.md").read_text(encoding="utf-8")


def table(file: str, name: str = "") -> list[tuple[str, Any, str, str]]:
    """The rows under the recipe's name, or of the only table: key, value as a recipe's text, source, note."""
    text = sources(file).partition(f"\n## {name}\n")[2].partition("\n## ")[0] if name else sources(file)
    rows = []
    for line in (
        text.partition("\n| key | value | source | note |\n")[2].partition("\n\n")[0].splitlines()[1:]
    ):
        match = _ROW.fullmatch(line)
        assert match, line
        value = read_yaml(f"v: {match[2]}".encode(), match[1], MANIFEST).data["v"]
        rows.append((match[1], value, match[3], match[4]))
    return rows


def script_arguments(script: str, **env: str) -> list[str]:
    """The trainer's arguments of a script, by bash itself."""
    bash = shutil.which("bash")
    assert bash
    run = subprocess.run(
        [bash, "-c", _STUBS + script], env={"PATH": "/nowhere", **env}, capture_output=True, text=True, check=False,
        cwd="/",
    )  # fmt: skip
    return [line for line in run.stdout.splitlines() if re.fullmatch(r"\+*[\w.]+=.*", line)]


def by_key(arguments: list[str]) -> dict[str, str]:
    return dict(line.lstrip("+").split("=", 1) for line in arguments)


def same(text: str, value: Any) -> bool:
    """Whether the script's text is the value that a recipe sets; of one file, a list of it is the same."""
    ours = value[0] if isinstance(value, list) and len(value) == 1 else value
    bare = text.strip("'").replace("/home/you/", "~/")
    return bool(read_scalar(yaml.safe_load(bare)) in (value, ours))
