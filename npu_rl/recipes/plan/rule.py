"""One rule of a plan: whether it holds, with the figures it was judged by, and what to change if it doesn't."""

from __future__ import annotations

from dataclasses import dataclass

from npu_rl.manifest.problems import KeyPath


@dataclass(frozen=True)
class Rule:
    """said: the figures, as a sentence. change: what helps if it doesn't hold.

    keys: the trainer's keys it is about, the likeliest to be changed first; path: the recipe's key, where it is no
    key of the trainer. advice: a run works without it, but not as meant. checked: `check_recipe` judges it by the
    same code, so who asks both is told of it once.
    """

    name: str
    ok: bool
    said: str
    change: str = ""
    keys: tuple[str, ...] = ()
    path: KeyPath = ()
    advice: bool = False
    checked: bool = False

    @property
    def refuses(self) -> bool:
        """Whether the recipe can't be run because of it."""
        return not self.ok and not self.advice
