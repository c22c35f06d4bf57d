"""A loaded recipe as one self-contained YAML file; each line names the file and line it came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.masking import masked_argument, masked_data
from npu_rl.common.yaml_documents.document import Plain
from npu_rl.common.yaml_documents.problems import KeyPath, dotted
from npu_rl.common.yaml_documents.quoted_text import Quoted
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe

_PLAIN = re.compile(r"(?!-+$)[A-Za-z0-9_./+-][A-Za-z0-9_./+@%=-]*(:[A-Za-z0-9_./+@%=-]+)*")
_NULLS = ("null", "~")


@dataclass(frozen=True)
class ShownRecipe:
    """The result of `recipes show`: a recipe with `extends:` and the command line resolved, without secrets.

    Attributes:
        files: SHA-256 of the recipe and of each file it extends.
        where: File and line of each value, by key.
    """

    name: str
    path: Path
    bundled: bool
    files: Mapping[str, str]
    digest: str
    recipe: dict[str, Any]
    where: dict[str, str]


def shown_recipe(loaded: LoadedRecipe) -> ShownRecipe:
    """Return a recipe for programs."""
    typed = loaded.recipe.model_dump(mode="json", by_alias=True, exclude={"extends"})
    where = {dotted(path): str(origin) for path, origin in loaded.origins.items() if path}
    name, files = loaded.recipe.name, loaded.files
    return ShownRecipe(name, loaded.path, loaded.bundled, files, loaded.digest, masked_data(typed), where)


def recipe_yaml(loaded: LoadedRecipe) -> str:
    """Return the recipe as YAML, with `extends:` and the command line resolved.

    It loads as an equal recipe, except for secrets, which are masked. Paths that begin with ./ or ../ stay relative to
    the folder of the recipe, which a comment names.
    """
    lines = [f"# Resolved from {', '.join(map(_comment, loaded.files))}"]
    lines += [f"# and {_comment(masked_argument(override))}" for override in loaded.overrides]
    if not loaded.bundled:
        lines.append(f"# ./ is {_comment(str(loaded.path.parent))}")
    data = masked_data({key: value for key, value in loaded.data.items() if key != "extends"})
    lines += _mapping(loaded, data, ())
    return "\n".join(lines) + "\n"


def _mapping(loaded: LoadedRecipe, data: Mapping[str, Plain], path: KeyPath) -> Iterator[str]:
    indent = "  " * len(path)
    for key, value in data.items():
        here = (*path, key)
        if isinstance(value, dict) and value:
            yield f"{indent}{_scalar(key)}:"
            yield from _mapping(loaded, value, here)
        else:
            yield f"{indent}{_scalar(key)}: {_flow(value)}  # {_comment(loaded.where(*here))}"


def _flow(value: Plain) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return "~" if value is None else _scalar(value)


def _scalar(value: str) -> str:
    if not isinstance(value, Quoted) and _PLAIN.fullmatch(value) and value.lower() not in _NULLS:
        return value
    escapes = {one: f"\\U{ord(one):08x}" for one in value if one in '"\\' or not one.isprintable()}
    return '"' + "".join(escapes.get(one, one) for one in value) + '"'


def _comment(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
