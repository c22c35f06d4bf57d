"""Rules between the fields of one mapping of a recipe, in the words of JSON Schema.

They say what the `rules` of the models say.
"""

from __future__ import annotations

from typing import Any

MODEL: dict[str, Any] = {"oneOf": [{"required": ["path"]}, {"required": ["make"]}]}
DATA: dict[str, Any] = {
    "oneOf": [{"required": ["train"]}, {"required": ["make"]}],
    "dependentRequired": {"train": ["test"]},
}
