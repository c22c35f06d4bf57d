"""One rule of a plan: whether it holds, the figures that decided, and the fix if it doesn't."""

from __future__ import annotations

from dataclasses import dataclass

from npu_rl.common.yaml_documents.problems import KeyPath


@dataclass(frozen=True)
class Rule:
    """A rule and its outcome.

    Attributes:
        id: Stable, in kebab-case; `plan: {except: ...}`, tests and programs refer to it.
        ok: Whether it holds.
        figures: The values it was judged by, as a sentence, with the code that requires it (file:line@commit).
        fix: What to write in the recipe if it doesn't hold.
        keys: The trainer's keys it is about, the likeliest to be changed first.
        path: The recipe's key, for a rule that is about none of the trainer's.
        advice: Whether a run that breaks it works, but not as intended.
        certain: Whether a run that breaks it crashes or computes something wrong, so that it can't be overruled.
        skipped: Why the rule does not apply to this tree; `ok` is True then.
    """

    id: str
    ok: bool
    figures: str
    fix: str = ""
    keys: tuple[str, ...] = ()
    path: KeyPath = ()
    advice: bool = False
    certain: bool = True
    skipped: str = ""

    @property
    def refuses(self) -> bool:
        """Return whether the rule makes `train` refuse the recipe."""
        return not self.ok and not self.advice
