"""Scalar types of configuration files: validated text, with its shape for the JSON Schema.

`version: 3.10` may be written without quotes. The loader keeps it as text; an editor that follows the JSON Schema
sees a number. So the shape of every text also accepts numbers and booleans.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from npu_rl.common.yaml_documents import text_checks
from npu_rl.common.yaml_documents.problems import shown
from npu_rl.common.yaml_documents.text_checks import URL_PATTERN, check_git_url

_PATH_PATTERN = r"^(\.|(?![-/~])(?!(.*/)?(\.\.?|\.[gG][iI][tT])?(/|$))[^\\]+)$"
_REF_PATTERN = r"^([0-9a-f]{40}$|refs/[^ ]+$)"
_PATCH_PATTERN = rf"^(\.\.?/.+|{text_checks.PATCHSET_PATTERN[1:-1]})$"


class OrOne:
    """Marks a list that may be given as one of its items, for the JSON Schema."""


def text_shape(pattern: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema of a text, which an editor may also see as a number or a boolean."""
    shape: dict[str, Any] = {"type": ["string", "number", "boolean"]}
    return {**shape, "pattern": pattern} if pattern else shape


def _shape(pattern: str | None = None) -> WithJsonSchema:
    return WithJsonSchema(text_shape(pattern))


def _read_switch(value: object) -> object:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, bool):
        return value
    raise ValueError("must be true or false")


def _read_count(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,2}", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 99:
        return value
    raise ValueError("must be a whole number from 0 to 99")


def _read_schema(value: object) -> object:
    if value in ("1", 1) and not isinstance(value, bool):
        return 1
    got = f", not {shown(value)}" if isinstance(value, str) else ""
    raise ValueError(f"must be 1, the only schema version this npu-rl supports{got}")


SchemaVersion = Annotated[Literal[1], BeforeValidator(_read_schema), WithJsonSchema({"enum": [1, "1"]})]
Switch = Annotated[
    bool,
    BeforeValidator(_read_switch),
    WithJsonSchema({"type": ["boolean", "string"], "pattern": "^([tT][rR][uU][eE]|[fF][aA][lL][sS][eE])$"}),
]
Count = Annotated[
    int,
    BeforeValidator(_read_count),
    WithJsonSchema({"type": ["integer", "string"], "minimum": 0, "maximum": 99, "pattern": "^[0-9]{1,2}$"}),
]
AnyText = Annotated[str, _shape()]
Text = Annotated[str, AfterValidator(text_checks.check_text), _shape(r"\S")]
Name = Annotated[str, AfterValidator(text_checks.check_name), _shape(text_checks.NAME_PATTERN)]
Ref = Annotated[str, AfterValidator(text_checks.check_full_ref), _shape(_REF_PATTERN)]
Pin = Annotated[str, AfterValidator(text_checks.check_pin), _shape(text_checks.PIN_PATTERN)]
Sha256 = Annotated[str, AfterValidator(text_checks.check_sha256), _shape(text_checks.SHA256_PATTERN)]
RelativePath = Annotated[str, AfterValidator(text_checks.check_path), _shape(_PATH_PATTERN)]
Directory = Annotated[str, AfterValidator(text_checks.check_directory), _shape(f"^$|{_PATH_PATTERN}")]
Glob = Annotated[str, AfterValidator(text_checks.check_glob), _shape(r"^[^-/\\][^\\]*$")]
GitUrl = Annotated[str, AfterValidator(check_git_url), _shape(URL_PATTERN)]
Release = Annotated[
    str, AfterValidator(text_checks.check_pypi), _shape(r"^[A-Za-z0-9][A-Za-z0-9._-]*==[^=]+$")
]
Requirement = Annotated[str, AfterValidator(text_checks.check_requirement), _shape(r"^\s*[A-Za-z0-9]")]
RequirementFile = Annotated[
    str,
    AfterValidator(text_checks.check_requirement_file),
    _shape(
        r"^(?![-/~])([^\[\]]*\.txt|([^\[\]]*/)?(setup\.py|pyproject\.toml)(\[[A-Za-z0-9._-]+(,[A-Za-z0-9._-]+)*\])?)$"
    ),
]
Bound = Annotated[str, AfterValidator(text_checks.check_bound), _shape(r"^\s*[<>=!~]")]
Version = Annotated[str, AfterValidator(text_checks.check_version), _shape(r"^[vV0-9]")]
Distribution = Annotated[
    str, AfterValidator(text_checks.check_distribution), _shape(text_checks.DISTRIBUTION_PATTERN)
]
Group = Annotated[str, AfterValidator(text_checks.check_group), _shape(text_checks.GROUP_PATTERN)]
EntryName = Annotated[str, AfterValidator(text_checks.check_entry_name), _shape(r"^[^=\[][^=]*$")]
ObjectName = Annotated[str, AfterValidator(text_checks.check_object), _shape(text_checks.OBJECT_PATTERN)]
Variable = Annotated[str, AfterValidator(text_checks.check_variable), _shape(text_checks.VARIABLE_PATTERN)]
Extends = Annotated[str, AfterValidator(text_checks.check_extends), _shape(r"^[^-/~]")]

PATCH_SHAPE = text_shape(r"^[^-/~]")
PATCH_TEXT_SHAPE = text_shape(_PATCH_PATTERN)
