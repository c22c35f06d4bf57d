"""The ground of a rule: the upstream code, and whether a run that breaks the rule is certain to fail."""

from __future__ import annotations

from typing import NamedTuple

from npu_rl.recipes.trainer_code.citations import Place


class Ground(NamedTuple):
    """The evidence for a rule.

    Attributes:
        places: Upstream places that all have to exist, each in one of its alternatives.
        certain: Whether a run that breaks the rule is certain to fail.
    """

    places: tuple[tuple[Place, ...], ...]
    certain: bool


def certain(*places: Place | tuple[Place, ...]) -> Ground:
    """Return the ground of a rule that can't be overruled; a tuple is one place with its alternatives."""
    return _ground(places, True)


def overrulable(*places: Place | tuple[Place, ...]) -> Ground:
    """Return the ground of a rule that a recipe can overrule; a tuple is one place with its alternatives."""
    return _ground(places, False)


def _ground(places: tuple[Place | tuple[Place, ...], ...], is_certain: bool) -> Ground:
    alternatives = tuple((one,) if isinstance(one, Place) else one for one in places)
    return Ground(alternatives, is_certain)
