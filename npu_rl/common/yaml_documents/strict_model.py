"""Base of the models of configuration files: no unknown keys, immutable, all errors at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from npu_rl.common.yaml_documents.problems import KeyPath
from npu_rl.common.yaml_documents.quoted_text import Quoted

if TYPE_CHECKING:
    from typing_extensions import Self

Fault = tuple[KeyPath, str]


class Strict(BaseModel):
    """A mapping with known keys only; `rules` adds checks across fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def rules(cls, data: Mapping[str, Any]) -> Iterator[Fault]:
        """Yield errors across fields (path, message), from raw data that may itself be malformed."""
        del data
        yield from ()

    @model_validator(mode="wrap")
    @classmethod
    def _collect_faults(cls, data: Any, handler: Callable[[Any], Self]) -> Self:
        # An ordinary model validator runs only once every field is right, so a person would see these
        # faults one run later than the others.
        data = _unquoted(data)
        found: list[InitErrorDetails] = []
        model: Self | None = None
        try:
            model = handler(data)
        except ValidationError as error:
            found.extend(_copied_details(error))
        if isinstance(data, Mapping):
            found.extend(_detail("value_error", text, path, data) for path, text in cls.rules(data))
        if found or model is None:
            raise ValidationError.from_exception_data(cls.__name__, found)
        return model


def _unquoted(data: Any) -> Any:
    """Return a mapping with plain texts for quoted ones: older pydantic's Literal refuses a subclass."""
    if isinstance(data, Mapping) and any(isinstance(value, Quoted) for value in data.values()):
        return {key: str(value) if isinstance(value, Quoted) else value for key, value in data.items()}
    return data


def _copied_details(error: ValidationError) -> Iterator[InitErrorDetails]:
    for entry in error.errors(include_url=False):
        context = entry.get("ctx", {})
        text = str(context["error"]) if "error" in context else entry["msg"]
        yield _detail(entry["type"], text, entry["loc"], entry["input"], expected=context.get("expected", ""))


def _detail(kind: str, text: str, path: KeyPath, data: Any, expected: str = "") -> InitErrorDetails:
    # The text goes in as a value, since braces in it must not be read as a template.
    context = {"text": text, "expected": expected}
    return InitErrorDetails(type=PydanticCustomError(kind, "{text}", context), loc=path, input=data)
