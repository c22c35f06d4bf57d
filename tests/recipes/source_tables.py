"""The tables of a sources file beside the bundled recipes: a row for each value of a recipe, with where it is from."""

from __future__ import annotations

from typing import Any

from npu_rl.common.bundled import data_root
from npu_rl.common.yaml_documents.yaml_reader import read_yaml
from npu_rl.stack.manifest.manifest_kind import MANIFEST
from tests.recipes.test_deepseek_r1_zero import ROW


def sources(file: str) -> str:
    return (data_root() / "recipes" / file).read_text(encoding="utf-8")


def table(file: str, name: str) -> list[tuple[str, Any, str, str]]:
    """The rows under the recipe's name: key, value as a recipe's text, source, note."""
    section = sources(file).partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    rows = []
    for line in section.splitlines():
        if line.startswith("| `"):
            match = ROW.fullmatch(line)
            assert match, line
            value = read_yaml(f"v: {match[2]}".encode(), match[1], MANIFEST).data["v"]
            rows.append((match[1], value, match[3], match[4]))
    return rows
