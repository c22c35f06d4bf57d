"""The ground of one rule: upstream places, and whether breaking it is certain to fail."""

from __future__ import annotations

from dataclasses import dataclass

from npu_rl.recipes.trainer_code.citations import Place


@dataclass(frozen=True)
class Ground:
    """What a rule rests on.

    Attributes:
        places: Upstream places that all have to exist, each in one of its alternatives.
        certain: Whether a run that breaks the rule is certain to fail.
    """

    places: tuple[tuple[Place, ...], ...] = ()
    certain: bool = False


def at(file: str, text: str, read_at: tuple[str, ...]) -> tuple[Place, ...]:
    """Return one place as the only alternative."""
    return (Place(file, text, read_at),)
