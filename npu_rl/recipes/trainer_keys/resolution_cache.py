"""Cache of resolved keys and checked values, stored with a code folder's other answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from npu_rl.recipes.trainer_code.answer_cache import AnswerCache, digest
from npu_rl.recipes.trainer_code.value_types import ExpectedType
from npu_rl.recipes.trainer_keys.resolution import KeyResolution, RefusedValue

if TYPE_CHECKING:
    from npu_rl.recipes.trainer_keys.code_usages import KeyRead


class ResolutionCache:
    """The cached results for one code folder and one configuration.

    A refusal and a usage don't depend on which other keys are set. To look for them takes most of the time of a
    judgement, so they are kept when another key is set.
    """

    def __init__(self, answers: AnswerCache, configuration: object, others: object) -> None:
        """Prepare the cache.

        Args:
            answers: The cache of answers on the code folder.
            configuration: All that a refusal depends on besides the files, the key and its value.
            others: What a resolution depends on as well: the keys that are set.
        """
        self._answers = answers
        self._configuration = digest(configuration)
        self._whole = digest([configuration, others])

    def resolution(self, key: str, value: object, find: Callable[[], KeyResolution]) -> KeyResolution:
        """Return the resolution of a key with this value, from the cache or by calling `find`."""
        question = [self._whole, "resolution", key, repr(value)]
        return self._answers.answer(question, find, _resolution_to_json, _resolution_from_json)

    def refusal(
        self, key: str, value: object, find: Callable[[], RefusedValue | None]
    ) -> RefusedValue | None:
        """Return why a value is refused, or None, from the cache or by calling `find`."""
        question = [self._configuration, "refusal", key, repr(value)]
        return self._answers.answer(question, find, _as_plain, _refusal_from_json)

    def usage(self, depends_on: Sequence[object], find: Callable[[], KeyRead | None]) -> KeyRead | None:
        """Return a usage of a key, from the cache or by calling `find`.

        Args:
            depends_on: All that it depends on besides the files.
            find: Finds it in the files.
        """
        return self._answers.answer(["usage", *depends_on], find, _as_plain, _usage_from_json)


def _resolution_to_json(resolution: KeyResolution) -> Any:
    plain = asdict(resolution)
    plain["expected"]["types"] = sorted(plain["expected"]["types"])
    return plain


def _resolution_from_json(kept: Any) -> KeyResolution:
    expected = ExpectedType(frozenset(kept["expected"]["types"]), tuple(kept["expected"]["choices"]))
    return KeyResolution(**{**kept, "expected": expected})


def _as_plain(found: KeyRead | RefusedValue | None) -> Any:
    return None if found is None else asdict(found)


def _usage_from_json(kept: Any) -> KeyRead | None:
    if kept is None:
        return None
    from npu_rl.recipes.trainer_keys.code_usages import KeyRead

    return KeyRead(**{**kept, "holder": tuple(kept["holder"])})


def _refusal_from_json(kept: Any) -> RefusedValue | None:
    return None if kept is None else RefusedValue(**{**kept, "names": tuple(kept["names"])})
