"""Cache of resolved keys and checked values, among the answers on a code folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from npu_rl.trainer_code.answer_cache import AnswerCache, digest
from npu_rl.trainer_keys.resolution import KeyResolution, RefusedValue
from npu_rl.trainer_keys.value_types import ExpectedType


class ResolutionCache:
    """The cached results for one code folder and one configuration."""

    def __init__(self, answers: AnswerCache, configuration: object) -> None:
        """Prepare the cache.

        Args:
            answers: The cache of answers on the code folder.
            configuration: All that a result depends on besides the files, the key and its value.
        """
        self._answers = answers
        self._configuration = digest(configuration)

    def resolution(self, key: str, value: object, find: Callable[[], KeyResolution]) -> KeyResolution:
        """Return the resolution of a key that has this value, from the cache or else by `find`."""
        question = self._question("resolution", key, value)
        return self._answers.answer(question, find, _resolution_to_json, _resolution_from_json)

    def refusal(
        self, key: str, value: object, find: Callable[[], RefusedValue | None]
    ) -> RefusedValue | None:
        """Return why a value is refused or None, from the cache or else by `find`."""
        question = self._question("refusal", key, value)
        return self._answers.answer(question, find, _refusal_to_json, _refusal_from_json)

    def _question(self, kind: str, key: str, value: object) -> list[object]:
        return [self._configuration, kind, key, repr(value)]


def _resolution_to_json(resolution: KeyResolution) -> Any:
    plain = asdict(resolution)
    plain["expected"]["types"] = sorted(plain["expected"]["types"])
    return plain


def _resolution_from_json(kept: Any) -> KeyResolution:
    expected = ExpectedType(frozenset(kept["expected"]["types"]), tuple(kept["expected"]["choices"]))
    return KeyResolution(**{**kept, "expected": expected})


def _refusal_to_json(refused: RefusedValue | None) -> Any:
    return None if refused is None else asdict(refused)


def _refusal_from_json(kept: Any) -> RefusedValue | None:
    return None if kept is None else RefusedValue(**{**kept, "names": tuple(kept["names"])})
