"""The words of a recipe: every key there is, and which of them is the trainer's `data.train_batch_size`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from npu_rl.config.suggest import did_you_mean, nearest, question
from npu_rl.config.validation_errors import model_of
from npu_rl.recipes.recipe_fields import Key
from npu_rl.recipes.schema import Recipe

_SHARES = ("algorithm.gamma", "algorithm.lam")  # discounts, for which a recipe has no word


@cache
def sections() -> tuple[str, ...]:
    """The keys at the top of a recipe."""
    return tuple(field.alias or name for name, field in Recipe.model_fields.items())


@cache
def dotted_keys() -> tuple[str, ...]:
    """Every key that holds a value, such as optimizer.lr, in the schema's order."""
    return tuple(name for name, _ in _keys(Recipe, ""))


def word_for(trainer_key: str) -> str | None:
    """The recipe's key that is written to a key of the trainer: data.train_batch_size is data.batch."""
    parts = trainer_key.split(".")
    for length in range(len(parts), 0, -1):
        word = _words().get(".".join(parts[:length]))
        if word is not None:
            name, open_ended = word
            if open_ended or length == len(parts):
                return ".".join([name, *parts[length:]])
    return None


def suggestion(key: str) -> str:
    """`; did you mean 'optimizer.lr'?` for a key nobody knows, else an empty string."""
    meant = meant_by(key)
    return question(meant[:3]) if meant else did_you_mean(key, [*sections(), *dotted_keys()])


def meant_by(key: str) -> list[str]:
    """The recipe's keys that an unknown key may be, the likeliest first: `rollout.n` is rollout.answers.

    It has the last name of one of the trainer's keys, or of one of the recipe's; or a name that is nearly one.
    """
    if word := word_for(key):
        return [word]
    section, _, last = key.rpartition(".")
    here = section.partition(".")[0]
    words = {target: word for target, (word, _) in _words().items()}
    for name in (last, _spelled(last, here)):
        if not name:
            continue
        found = [word for target, word in words.items() if target.rpartition(".")[2] == name]
        found += [word for word in dotted_keys() if word.rpartition(".")[2] == name]
        if section:
            whole = [word for target, word in words.items() if f".{target}".endswith(f".{section}.{name}")]
            whole += [word for word in dotted_keys() if word == f"{section}.{name}"]
            inside = [word for word in found if word.partition(".")[0] == here]
            found = whole or inside or (found if name == last else [])
        if found:
            return list(dict.fromkeys(found))
    return []


def choices_of(word: str) -> tuple[str, ...]:
    """The names that a key of the recipe takes; none where it takes any text."""
    field = _fields().get(word)
    arguments = [field.annotation, *get_args(field.annotation)] if field is not None else []
    return tuple(
        name
        for one in arguments
        if get_origin(one) is Literal
        for name in get_args(one)
        if isinstance(name, str)
    )


def out_of_range(trainer_key: str, value: Any) -> str | None:
    """What is wrong with a number for a key of the trainer whose range is known; None if nothing is."""
    if trainer_key in _SHARES and type(value) in (int, float) and not 0 <= value <= 1:
        return "must be from 0 to 1"
    word = word_for(trainer_key)
    field = _fields().get(word) if word else None
    if (
        field is None
        or field.annotation is None
        or isinstance(value, bool)
        or not isinstance(value, (int, float))
    ):
        return None
    try:
        TypeAdapter(field.annotation).validate_python(value)
    except ValidationError as error:
        context = error.errors(include_url=False)[0].get("ctx", {})
        return str(context["error"]) if "error" in context else None
    return None


def _spelled(name: str, section: str) -> str | None:
    """The nearest last name of the section's keys, the recipe's and the trainer's."""
    own = [word for word in dotted_keys() if word.partition(".")[0] == section]
    targets = [target for target, (word, _) in _words().items() if word.partition(".")[0] == section]
    return nearest(name, [key.rpartition(".")[2] for key in (*own, *targets)])


@cache
def _words() -> dict[str, tuple[str, bool]]:
    """Key of the trainer -> the recipe's key, and whether that is a mapping with keys of its own."""
    words: dict[str, tuple[str, bool]] = {}
    for name, (key, open_ended) in _keys(Recipe, ""):
        for target in (*key.both, *key.fsdp, *key.megatron) if key else ():
            words.setdefault(target, (name, open_ended))
    return words


@cache
def _fields() -> dict[str, FieldInfo]:
    """The field of each key that holds a value."""
    return dict(_values(Recipe, ""))


def _values(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        dotted = f"{prefix}{field.alias or name}"
        inner = model_of(field.annotation)
        if inner is not None:
            yield from _values(inner, f"{dotted}.")
        else:
            yield dotted, field


def _keys(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, tuple[Key | None, bool]]]:
    for dotted, field in _values(model, prefix):
        key = next((item for item in field.metadata if isinstance(item, Key)), None)
        yield dotted, (key, getattr(field.annotation, "__origin__", None) is dict)
