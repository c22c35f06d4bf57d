"""The scalar types of a recipe, and `Key`, which ties a field to the keys of the trainer.

A recipe's scalars arrive as text: YAML 1.1 would read `1e-6` as text and `3.10` as a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic.fields import FieldInfo

from npu_rl.common.yaml_documents.quoted_text import Quoted
from npu_rl.common.yaml_documents.scalar_types import AnyText as AnyText
from npu_rl.common.yaml_documents.scalar_types import Name as Name
from npu_rl.common.yaml_documents.scalar_types import OrOne, text_shape
from npu_rl.common.yaml_documents.scalar_types import Switch as Switch
from npu_rl.common.yaml_documents.scalar_types import Text as Text
from npu_rl.common.yaml_documents.scalar_types import Variable as Variable
from npu_rl.common.yaml_documents.text_checks import ADDRESS_PATTERN, split_address

_WHOLE_PATTERN = r"[+-]?[0-9]+(_[0-9]+)*([eE]\+?[0-9]{1,2})?"
_PLAIN_WHOLE_PATTERN = r"[+-]?[0-9]+(_[0-9]+)*"
_DECIMAL_PATTERN = r"[+-]?([0-9]+(_[0-9]+)*(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
_DIGITS = 300  # no setting is longer; int() refuses 4,300 digits, float() returns inf from 309

_INTEGER = re.compile(_PLAIN_WHOLE_PATTERN)
_WHOLE_NUMBER = re.compile(_WHOLE_PATTERN)  # 1e2 is 100
_NUMBER = re.compile(_DECIMAL_PATTERN)
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
TRAINER_KEY_PATTERN = rf"^{_WORD}(\.{_WORD})*$"
_SECTION_PATTERN = rf"^({_WORD}|\*)(\.({_WORD}|\*))*$"
_DOTTED_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$"


@dataclass(frozen=True)
class Key:
    """The trainer's keys that a field is written to.

    Attributes:
        both: Keys of both backends.
        fsdp: Keys of FSDP only.
        megatron: Keys of Megatron only.
        more: What a trainer's value is above the recipe's.
    """

    both: tuple[str, ...] = ()
    fsdp: tuple[str, ...] = ()
    megatron: tuple[str, ...] = ()
    more: int = 0

    def names(self, megatron: bool) -> tuple[str, ...]:
        """Return the keys for one backend; none if the field has no effect with it."""
        return self.both + (self.megatron if megatron else self.fsdp)


def setting(
    section: str,
    description: str,
    *both: str,
    fsdp: str | tuple[str, ...] = (),
    megatron: str | tuple[str, ...] = (),
    more: int = 0,
    default: Any = None,
    min_length: int | None = None,
) -> Any:
    """Return a field that is written to keys of the trainer. Left out, it is None: the trainer's own default.

    Args:
        section: What all of the keys begin with, with the dot.
    """

    def below(names: str | tuple[str, ...]) -> tuple[str, ...]:
        return tuple(section + name for name in ((names,) if isinstance(names, str) else names))

    extra: Any = {"key": Key(below(both), below(fsdp), below(megatron), more)}
    return Field(default=default, description=description, json_schema_extra=extra, min_length=min_length)


def of_both(description: str, name: str) -> Any:
    """Return a field of Megatron that is written to the actor and to the reference."""
    return setting("actor_rollout_ref.", description, megatron=(f"actor.{name}", f"ref.{name}"))


def key_of(field: FieldInfo) -> Key | None:
    """Return the trainer's keys that a field is written to; None if it is npu-rl's own."""
    extra: Any = field.json_schema_extra
    return extra["key"] if extra else None


def optional(description: str) -> Any:
    """Return a field of npu-rl's own that is None where a recipe leaves it out."""
    return Field(default=None, description=description)


def _samples(value: object) -> object:
    if isinstance(value, bool) or value == "validation":
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("must be true, false or validation")


def read_scalar(value: object) -> object:
    """Return a scalar as YAML 1.2 reads it: true, false, a number, else text; also inside of lists and mappings.

    Quoted scalars are text, except "null" and "~": they are null, which outside of `overrides` can't be written without
    quotes because that removes a key.
    """
    if isinstance(value, dict):
        return {name: read_scalar(item) for name, item in value.items()}
    if isinstance(value, list):
        return [read_scalar(item) for item in value]
    if not isinstance(value, str):
        return value
    if value.lower() in ("null", "~"):
        return None
    if isinstance(value, Quoted):
        return str(value)
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if _INTEGER.fullmatch(value) and len(value) <= _DIGITS:
        return int(value)
    if _NUMBER.fullmatch(value) and math.isfinite(float(value)):
        return float(value)
    return value


def _whole(value: object) -> object:
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value) and len(value) <= _DIGITS:
        digits, _, power = value.lower().partition("e")
        return int(digits) * 10 ** int(power or 0)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("must be a whole number")


def _number(value: object) -> object:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ValueError("must be a number")


def _must(be: str, holds: Callable[[Any], bool]) -> AfterValidator:
    """Return a check of a value; `be` completes "must be"."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(f"must be {be}")
        return value

    return AfterValidator(check)


def _as_list(value: object) -> object:
    """Return a text as a list with one item; lists stay."""
    return [str(value)] if isinstance(value, str) else value


def _slug(value: str) -> str:
    if not _SLUG.fullmatch(value):
        spelled = value.lower().replace("_", "-")
        example = spelled if _SLUG.fullmatch(spelled) else "hf-rollout-repeats-once"
        raise ValueError(f"must be small letters, digits and single hyphens, such as {example}")
    return value


def _matching(pattern: str, what: str) -> Any:
    """Return a type of text that matches a pattern; `what` completes "must be"."""
    compiled = re.compile(pattern)
    matches = _must(what, lambda value: compiled.fullmatch(value) is not None)
    return Annotated[str, matches, WithJsonSchema(text_shape(pattern))]


def _address(value: str) -> str:
    split_address(value)
    return value


_WHOLE: dict[str, Any] = {"type": ["integer", "string"], "pattern": f"^{_WHOLE_PATTERN}$"}
_DECIMAL: dict[str, Any] = {
    "type": ["number", "string"],
    "pattern": f"^{_DECIMAL_PATTERN}$",
}
# Everything but null, which removes a key.
_ANY: dict[str, Any] = {"type": ["string", "number", "boolean", "array", "object"]}

Whole = Annotated[int, BeforeValidator(_whole), WithJsonSchema(_WHOLE)]
Positive = Annotated[Whole, _must("1 or more", lambda value: value >= 1)]
Count = Annotated[Whole, _must("0 or more", lambda value: value >= 0)]
OrAll = Annotated[Whole, _must("-1 or more", lambda value: value >= -1)]
OrMinusOne = Annotated[Whole, _must("-1, or 1 or more", lambda value: value == -1 or value >= 1)]
Number = Annotated[float, BeforeValidator(_number), WithJsonSchema(_DECIMAL)]
NotNegative = Annotated[Number, _must("0 or more", lambda value: value >= 0)]
AboveZero = Annotated[Number, _must("more than 0", lambda value: value > 0)]
Share = Annotated[Number, _must("more than 0 and at most 1", lambda value: 0 < value <= 1)]
Samples = Annotated[
    bool | Literal["validation"],
    BeforeValidator(_samples),
    WithJsonSchema(
        {
            "type": ["boolean", "string"],
            "pattern": "^([tT][rR][uU][eE]|[fF][aA][lL][sS][eE]|validation)$",
        }
    ),
]
Scalar = Annotated[Any, BeforeValidator(read_scalar), WithJsonSchema(_ANY)]
_T = TypeVar("_T")
OneOrMore = Annotated[list[_T], BeforeValidator(_as_list), OrOne()]
Address = Annotated[
    str, AfterValidator(_address), WithJsonSchema({"type": "string", "pattern": f"^{ADDRESS_PATTERN}$"})
]
Slug = Annotated[
    str, AfterValidator(_slug), WithJsonSchema({"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"})
]
Metric = Literal[
    "critic/score/mean",
    "critic/rewards/mean",
    "response_length/mean",
    "response_length/clip_ratio",
    "actor/pg_loss",
    "actor/kl_loss",
    "actor/entropy",
    "actor/grad_norm",
    "perf/throughput",
    "timing_s/step",
    "timing_s/gen",
    "timing_s/reshard",
    "timing_s/reward",
    "timing_s/old_log_prob",
    "timing_s/ref",
    "timing_s/adv",
    "timing_s/update_actor",
]
"""The metrics that npu-rl shows and watches, by verl's names."""
if TYPE_CHECKING:
    TrainerKey = str
    SectionKey = str
    DottedName = str
else:
    TrainerKey = _matching(TRAINER_KEY_PATTERN, "a key of the trainer, such as actor_config.lr")
    SectionKey = _matching(
        _SECTION_PATTERN, "a section of the trainer's configuration, such as actor_config or model.*"
    )
    DottedName = _matching(_DOTTED_NAME_PATTERN, "a dotted name, such as package.module.Name")
