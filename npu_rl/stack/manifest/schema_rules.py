"""Rules across the fields of one mapping as JSON Schema, where JSON Schema can express the models' `rules`."""

from __future__ import annotations

from typing import Any

SOURCE: dict[str, Any] = {
    "oneOf": [{"required": ["git"]}, {"required": ["pypi"]}],
    "if": {"required": ["pypi"]},
    "else": {"properties": {"drop": {"maxItems": 0}}},
}

_WITH_COMMITS = {
    "required": ["sources"],
    "properties": {
        "sources": {"contains": {"type": "object", "required": ["git"]}},
    },
}
_FULL = {"required": ["checkout"], "properties": {"checkout": {"const": "full"}}}

_BUILT = {"required": ["build"], "properties": {"build": {"minItems": 1}}}

COMPONENT: dict[str, Any] = {
    "allOf": [{"if": _BUILT, "then": _FULL}],
    "if": _WITH_COMMITS,
    "then": {"required": ["ref"]},
    "else": {
        "not": {"anyOf": [{"required": ["ref"]}, _FULL]},
        "properties": {"merge": {"maxItems": 0}, "submodules": {"maxProperties": 0}},
    },
}


_ORIGIN = {"type": "object", "anyOf": [{"required": ["from"]}, {"required": ["replaces"]}]}
_NO_ORIGINS = {"properties": {"patches": {"not": {"contains": _ORIGIN}}}}
# A component without `take` must hold patches for another: whether for which one, JSON Schema can't follow.
MANIFEST: dict[str, Any] = {
    "if": {"properties": {"tree": _NO_ORIGINS, "components": {"additionalProperties": _NO_ORIGINS}}},
    "then": {
        "properties": {
            "components": {
                "additionalProperties": {
                    "if": _FULL,
                    "else": {"required": ["take"], "properties": {"take": {"minItems": 1}}},
                }
            }
        }
    },
}


def patch(text: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a patch entry: a mapping, or only its path as text."""
    return {"anyOf": [text, {"$ref": "#/$defs/PatchEntry"}]}
