"""The words of a recipe: every key there is, and which of them is the trainer's `data.train_batch_size`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from pydantic import BaseModel

from npu_rl.manifest.explain import model_of
from npu_rl.manifest.problems import closest
from npu_rl.recipes.fields import Key
from npu_rl.recipes.schema import Recipe


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
    last = key.rpartition(".")[2]
    same = [name for name in dotted_keys() if name.rpartition(".")[2] == last]
    if same:
        return f"; did you mean {' or '.join(map(repr, same[:3]))}?"
    return closest(key, [*sections(), *dotted_keys()])


@cache
def _words() -> dict[str, tuple[str, bool]]:
    """Key of the trainer -> the recipe's key, and whether that is a mapping with keys of its own."""
    words: dict[str, tuple[str, bool]] = {}
    for name, (key, open_ended) in _keys(Recipe, ""):
        for target in (*key.both, *key.fsdp, *key.megatron) if key else ():
            words.setdefault(target, (name, open_ended))
    return words


def _keys(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, tuple[Key | None, bool]]]:
    for name, field in model.model_fields.items():
        dotted = f"{prefix}{field.alias or name}"
        inner = model_of(field.annotation)
        if inner is not None:
            yield from _keys(inner, f"{dotted}.")
        else:
            key = next((item for item in field.metadata if isinstance(item, Key)), None)
            yield dotted, (key, getattr(field.annotation, "__origin__", None) is dict)
