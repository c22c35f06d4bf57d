"""What the readers of a code folder said of keys and values, as `AnswerCache` keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from npu_rl.trainer_code.answer_cache import AnswerCache, digest
from npu_rl.trainer_keys.resolution import Refused, Verdict
from npu_rl.trainer_keys.value_types import Kinds


class Remembered:
    """The answers on one code folder for one configuration."""

    def __init__(self, answers: AnswerCache, configuration: object) -> None:
        """Args: configuration: all that an answer depends on beside the files, the key and its value."""
        self._answers = answers
        self._configuration = digest(configuration)

    def verdict(self, key: str, value: object, look: Callable[[], Verdict]) -> Verdict:
        """Return the verdict on a key that has this value; `look` finds it."""
        return self._answers.answer(self._question("verdict", key, value), look, _verdict_json, _verdict)

    def refusal(self, key: str, value: object, look: Callable[[], Refused | None]) -> Refused | None:
        """Return why a value is refused, or None if it isn't; `look` finds it."""
        return self._answers.answer(self._question("refusal", key, value), look, _refusal_json, _refusal)

    def _question(self, kind: str, key: str, value: object) -> list[object]:
        return [self._configuration, kind, key, repr(value)]


def _verdict_json(verdict: Verdict) -> Any:
    plain = asdict(verdict)
    plain["kinds"]["kinds"] = sorted(plain["kinds"]["kinds"])
    return plain


def _verdict(kept: Any) -> Verdict:
    kinds = Kinds(frozenset(kept["kinds"]["kinds"]), tuple(kept["kinds"]["choices"]))
    return Verdict(**{**kept, "kinds": kinds})


def _refusal_json(refused: Refused | None) -> Any:
    return None if refused is None else asdict(refused)


def _refusal(kept: Any) -> Refused | None:
    return None if kept is None else Refused(**{**kept, "names": tuple(kept["names"])})
