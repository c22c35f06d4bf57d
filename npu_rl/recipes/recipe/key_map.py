"""The keys of a recipe, and the trainer's keys that they set."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from npu_rl.common.yaml_documents.problems import KeyPath
from npu_rl.common.yaml_documents.suggest import nearest
from npu_rl.common.yaml_documents.validation_errors import model_of
from npu_rl.recipes.recipe.recipe_fields import key_of
from npu_rl.recipes.recipe.schema import Recipe

_SHARES = ("algorithm.gamma", "algorithm.lam")  # discounts, for which a recipe has no key


@cache
def sections() -> tuple[str, ...]:
    """Return the keys at the top of a recipe."""
    return tuple(field.alias or name for name, field in Recipe.model_fields.items())


@cache
def dotted_keys() -> tuple[str, ...]:
    """Return every key that holds a value, such as optimizer.lr, in the schema's order."""
    return tuple(_fields())


def recipe_key_of(trainer_key: str) -> str | None:
    """Return the recipe's key that sets a trainer's key: data.batch for data.train_batch_size."""
    parts = trainer_key.split(".")
    for length in range(len(parts), 0, -1):
        word = _recipe_keys().get(".".join(parts[:length]))
        if word is not None:
            name, open_ended = word
            if open_ended or length == len(parts):
                return ".".join([name, *parts[length:]])
    return None


def suggest_keys(key: str) -> list[str]:
    """Return the recipe's keys that an unknown key may mean, most likely first: rollout.responses for `rollout.n`.

    Candidates are keys of the recipe and of the trainer with the same or a similar last name.
    """
    if word := recipe_key_of(key):
        return [word]
    section, _, last = key.rpartition(".")
    top = section.partition(".")[0]
    words = {target: word for target, (word, _) in _recipe_keys().items()}
    for name in (last, _nearest_last_name(last, top)):
        if not name:
            continue
        found = [word for target, word in words.items() if target.rpartition(".")[2] == name]
        found += [word for word in dotted_keys() if word.rpartition(".")[2] == name]
        if section:
            whole = [word for target, word in words.items() if f".{target}".endswith(f".{section}.{name}")]
            whole += [word for word in dotted_keys() if word == f"{section}.{name}"]
            inside = [word for word in found if word.partition(".")[0] == top]
            found = whole or inside or (found if name == last else [])
        if found:
            return list(dict.fromkeys(found))
    return []


def suggested_key(path: KeyPath) -> str:
    """Return the most likely recipe key for an unknown key, or ""."""
    candidates = suggest_keys(".".join(map(str, path)))
    return candidates[0] if candidates else ""


def check_range(trainer_key: str, value: Any) -> str | None:
    """Return why a number is out of the range of a trainer's key; None if it is valid or the range is unknown."""
    if trainer_key in _SHARES and type(value) in (int, float) and not 0 <= value <= 1:
        return "must be from 0 to 1"
    word = recipe_key_of(trainer_key)
    field = _fields().get(word) if word else None
    if field is None or field.annotation is None or type(value) not in (int, float):
        return None
    if (key := key_of(field)) and key.more:  # it has other numbers than the trainer
        return None
    try:
        TypeAdapter(field.annotation).validate_python(value)
    except ValidationError as error:
        context = error.errors(include_url=False)[0].get("ctx", {})
        return str(context["error"]) if "error" in context else None
    return None


def _nearest_last_name(name: str, section: str) -> str | None:
    """Return the most similar last name among the section's keys, including the trainer's."""
    own = [word for word in dotted_keys() if word.partition(".")[0] == section]
    targets = [target for target, (word, _) in _recipe_keys().items() if word.partition(".")[0] == section]
    return nearest(name, [key.rpartition(".")[2] for key in (*own, *targets)])


@cache
def _recipe_keys() -> dict[str, tuple[str, bool]]:
    """Return, for each trainer's key, the recipe's key and whether it is a mapping with its own keys."""
    words: dict[str, tuple[str, bool]] = {}
    for name, field in _fields().items():
        if key := key_of(field):
            for target in (*key.both, *key.fsdp, *key.megatron):
                words.setdefault(target, (name, getattr(field.annotation, "__origin__", None) is dict))
    return words


@cache
def _fields() -> dict[str, FieldInfo]:
    """Return the field of each key that holds a value, in the schema's order."""
    return dict(_values(Recipe, ""))


def _values(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        dotted = f"{prefix}{field.alias or name}"
        inner = model_of(field.annotation)
        if inner is not None:
            yield from _values(inner, f"{dotted}.")
        else:
            yield dotted, field
