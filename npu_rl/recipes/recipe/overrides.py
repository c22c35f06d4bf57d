"""Overrides of a recipe on the command line, as `key=value`.

How the key is resolved:
- a first part that is a section of the recipe makes it a key of the recipe: `optimizer.lr=1e-6`, `steps=20`;
- otherwise a dotted key is the trainer's own: `actor_rollout_ref.actor.ppo_epochs=2`, and the same as
  `overrides.actor_rollout_ref.actor.ppo_epochs=2`. Where a section of the trainer has the name of one of the
  recipe's (data, trainer, algorithm), only the second form sets it, or Hydra's `+` in front. Where the trainer's keys
  are its own, the recipe has no sections on verl's keys, so those names are the trainer's;
- Hydra's `+` and `++` in front are accepted and dropped: npu-rl finds out which keys are new.

A value is read as in a recipe's file (`[a, b]`, `{a: b}`, quotes). For a key of the recipe `key=null` removes what the
file says; for a key of the trainer it is the trainer's null, as in its own scripts. `'key=~'` removes either (without
quotes bash makes the home folder of the ~ in `seed=~`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from npu_rl.common.errors import UsageError
from npu_rl.common.masking import masked_argument
from npu_rl.common.yaml_documents.document import DEPTH_LIMIT, Document, Plain
from npu_rl.common.yaml_documents.layers import Node, overlay
from npu_rl.common.yaml_documents.problems import COMMAND_LINE, COMMAND_LINE_PLACE, KeyPath, Problem, shown
from npu_rl.common.yaml_documents.quoted_text import Quoted
from npu_rl.common.yaml_documents.suggest import nearest, nearest_names, question
from npu_rl.common.yaml_documents.validation_errors import KeyFault, unknown_key
from npu_rl.recipes.recipe.key_map import dotted_keys, sections, suggest_keys, suggested_key
from npu_rl.recipes.recipe.recipe_fields import TRAINER_KEY_PATTERN
from npu_rl.recipes.recipe.recipe_paths import make_absolute
from npu_rl.recipes.recipe.schema import SECTIONS_OF_VERL, Recipe
from npu_rl.recipes.recipe.trainer_settings import OVERRIDES

_NOTHING_TO_REMOVE = "the recipe doesn't set it, so there is nothing to remove"
_NULL_HINT = "; null gives the trainer a null"

TRAINER_NULL = Quoted("null")
"""A null as a value (`read_scalar`). None removes what a parent says."""

_SHARED_SECTIONS = ("algorithm", "data", "trainer")  # of the recipe and of verl's configuration
# By difflib's measure; optimiser and optimizer have 0.89, reward and reward_model 0.67.
_SECTION_SIMILARITY = 0.8
_SYNTAX_HINT = "Write key=value, such as optimizer.lr=1e-6; key=null removes the key."
_KEYS_HINT = "`npu-rl recipes copy quickstart` writes recipe.schema.json beside it, which describes the keys."


@dataclass(frozen=True)
class CommandLineOverride:
    """One argument of the command line.

    Attributes:
        path: The key of the recipe.
        value: The new value; None removes the key.
        places: The key paths inside of `value`.
        null_words: Those of a None that is written as the word null.
    """

    text: str
    path: tuple[str, ...]
    value: Plain
    places: tuple[KeyPath, ...]
    null_words: frozenset[KeyPath] = frozenset()

    @property
    def origin(self) -> str:
        """The argument as messages name it."""
        return f"{COMMAND_LINE}{_short(self.text)}"

    def document(self) -> Document:
        """Return a document that sets only this key."""
        data: Plain = self.value
        for part in reversed(self.path):
            data = {part: data}
        assert isinstance(data, dict)
        places = [*self._above(), *((*self.path, *place) for place in self.places)]
        return Document(self.origin, data, dict.fromkeys(places, 0))

    def _above(self) -> list[KeyPath]:
        return [self.path[:length] for length in range(len(self.path))]

    def apply(
        self,
        root: Node,
        problems: list[Problem],
        own_paths: Collection[str] | None = None,
    ) -> Node:
        """Return the recipe with this override applied. Paths in the value are relative to the current folder.

        Args:
            own_paths: Keys that hold paths, of a trainer whose keys are its own; None for verl's.
        """
        if self.path[0] in SECTIONS_OF_VERL and len(self.path) > 1 and own_paths is not None:
            path = (OVERRIDES, ".".join(self.path))
            own = replace(self, path=path, value=_trainer_value(path, self.value, self.null_words))
            return own.apply(root, problems, own_paths)
        fault = unknown_key(self.path, Recipe, suggested_key)
        if fault is not None:
            meant = suggest_keys(".".join(self.path))[:3]
            if meant:
                fault = KeyFault(f"unknown key{question(meant)}", tuple(meant))
            elif len(self.path) > 1 and self.path[0] in _SHARED_SECTIONS:
                hint = f"if it is a key of the trainer, write {OVERRIDES}.{'.'.join(self.path)}=..."
                fault = KeyFault(f"{fault.message}; {hint}", fault.suggestions)
            problems.append(Problem(self.origin, 0, self.path, *fault))
            return root
        document = self.document()
        make_absolute(document, own_paths or ())
        found: list[Problem] = []
        result = overlay(root, document, found, self._above())
        if self.value is None:
            message = _NOTHING_TO_REMOVE + (_NULL_HINT if self.path[0] == OVERRIDES else "")
            found = [replace(problem, message=message) for problem in found]
        problems.extend(found)
        return result


def keep_trainer_nulls(document: Document) -> None:
    """Keep the word null below `overrides` as a null for the trainer, as in its own scripts."""
    _trainer_value((), document.data, document.null_words)


def has_own_keys(root: Node) -> bool:
    """Return whether the trainer has its own keys, so that the recipe's sections for verl's keys don't apply."""
    trainer = root.value.get("trainer") if isinstance(root.value, dict) else None
    return trainer is not None and isinstance(trainer.value, dict) and "keys" in trainer.value


def parse_overrides(arguments: Sequence[str]) -> list[CommandLineOverride]:
    """Parse the arguments, in order. Raises UsageError with every invalid one."""
    result: list[CommandLineOverride] = []
    faults: list[tuple[str, str, str]] = []
    seen: dict[tuple[str, ...], str] = {}
    for text in arguments:
        try:
            override = _parse(text)
            if first := seen.get(override.path):
                raise _Invalid(f"the key is given twice, first by {_short(first)}", "Keep one of them.")
        except _Invalid as fault:
            faults.append((_short(text), fault.why, fault.hint))
        else:
            seen[override.path] = text
            result.append(override)
    if faults:
        one = len(faults) == 1
        raise UsageError(
            f"Invalid argument '{faults[0][0]}'" if one else f"{len(faults)} invalid arguments",
            where=COMMAND_LINE_PLACE,
            why="\n".join(why if one else f"{text}: {why}" for text, why, _ in faults),
            hint="\n".join(dict.fromkeys(hint for _, _, hint in faults)),
        )
    return result


class _Invalid(Exception):
    def __init__(self, why: str, hint: str = _SYNTAX_HINT) -> None:
        super().__init__(why)
        self.why, self.hint = why, hint


def _parse(text: str) -> CommandLineOverride:
    key, equals, raw = text.partition("=")
    if not equals:
        raise _Invalid("it has no '='")
    path = _path(key, _short(raw))
    from npu_rl.common.yaml_documents.yaml_reader import NotYaml, read_value

    try:
        value, places, null_words = read_value(raw)
    except NotYaml as error:
        hint = "Write it as in a recipe's file; in quotes if it holds signs of YAML, such as '\"a: b\"'"
        raise _Invalid(f"the value can't be read: {error.why}", hint) from None
    if value is None and not raw.strip():
        raise _Invalid("it gives no value", f"Write {key}=null to remove it, or {key}='\"\"' for empty text.")
    value = _trainer_value(path, value, null_words)
    return CommandLineOverride(text, path, value, tuple(places), null_words)


def _trainer_value(path: KeyPath, value: Plain, null_words: Collection[KeyPath]) -> Plain:
    """Return the value of a key, with null words that are meant for the trainer's keys replaced by nulls."""
    for word in null_words:
        whole = (*path, *word)
        if len(whole) < 2 or whole[0] != OVERRIDES:
            continue
        if not word:
            return TRAINER_NULL
        holder: Any = value
        for part in word[:-1]:
            holder = holder[part]
        holder[word[-1]] = TRAINER_NULL
    return value


def _path(key: str, value: str) -> tuple[str, ...]:
    name = re.sub(r"^\+{1,2}", "", key)
    parts = tuple(name.split("."))
    if not all(parts):
        raise _Invalid("a part of the key is empty" if name else "the key is empty")
    if len(parts) > DEPTH_LIMIT:
        raise _Invalid(f"the key has more than {DEPTH_LIMIT} parts")
    if name.startswith("~"):
        raise _Invalid("Hydra's ~ is not supported", f"Write {name[1:]}=null to remove the key.")
    trainer_key = name
    if name == key:  # without a plus
        if parts[0] == "extends":
            raise _Invalid("the files are read before the command line", "Write `extends:` into a recipe.")
        if parts == (OVERRIDES,) or (parts[0] != OVERRIDES and parts[0] in sections()):
            return parts
        if parts[0] == OVERRIDES:
            trainer_key = ".".join(parts[1:])
        else:
            _refuse_misspelt(name, parts, value)
    if not re.fullmatch(TRAINER_KEY_PATTERN, trainer_key):
        named = "is not a key of a trainer: names of letters, digits, '_' and '-', with dots"
        raise _Invalid(f"{shown(trainer_key)} {named}")
    return OVERRIDES, trainer_key


def _refuse_misspelt(name: str, parts: Sequence[str], value: str) -> None:
    """Refuse a word without dots, which is no key of a trainer, and a section like one of the recipe's."""
    if len(parts) == 1:
        meant = suggest_keys(name)[:3] or nearest_names(name, [*sections(), *dotted_keys()], 1)
        what, last = f"key {shown(name)}", ""
    else:
        near = nearest(parts[0], sections(), _SECTION_SIMILARITY)
        if near is None:
            return
        meant = [".".join((near, *parts[1:]))]
        what, last = (
            f"section {shown(parts[0])}",
            f", or overrides.{name}={value} if it is a key of the trainer",
        )
    hint = f"Write {' or '.join(f'{one}={value}' for one in meant)}{last}." if meant else _KEYS_HINT
    raise _Invalid(f"a recipe has no {what}{question(meant)}", hint)


def _short(text: str) -> str:
    """Return an argument for a message: escaped, shortened, without secrets."""
    return shown(masked_argument(text))[1:-1]
