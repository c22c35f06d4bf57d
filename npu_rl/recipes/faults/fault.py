"""Known silent faults as data: catalogue/ID.yaml each, and patchsets/witnesses/ID.py, the script that shows it.

Commands read catalogue.json, which `.ci/regenerate` writes from the YAML files: every `setup` imports this, and YAML
takes ten times as long to parse. A NamedTuple is defined in a seventh of a dataclass's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from npu_rl.common.bounded import read_json
from npu_rl.common.bundled import witnesses_root
from npu_rl.common.errors import NpuRlError
from npu_rl.recipes.trainer_code.citations import Place

WRONG_RESULT = "wrong result"
SEVERITIES = (WRONG_RESULT, "dies", "hangs", "slow", "latent")
"""Kinds of effect, the worst first. The first is the one that no message and no crash ever shows."""

CATALOGUE_JSON = Path(__file__).resolve().parent / "catalogue.json"


class Ending(NamedTuple):
    """One change that fixes a fault.

    Attributes:
        by: "patch COMPONENT/VERSION/NAME or ...", or the upstream component with its commit or version.
        places: Texts that are there, or absent, once it is made; all have to hold.
    """

    by: str
    places: tuple[Place, ...]

    @property
    def patches(self) -> tuple[str, ...]:
        """COMPONENT/VERSION/NAME of the npu-rl patches that make it; empty for a change of upstream's."""
        return tuple(self.by.removeprefix("patch ").split(" or ")) if self.by.startswith("patch ") else ()


class KnownFault(NamedTuple):
    """A silent fault of an upstream.

    Attributes:
        id: Its name, by which a recipe accepts it.
        title: One line, a fact.
        severity: One of SEVERITIES.
        symptom: What a user sees.
        metrics: How it shows in the metrics.
        effect: Its size, with how it was measured.
        versions: Affected versions; for information, no verdict rests on them.
        upstream: The commit or thread that knows it.
        code: Where the fault is; a tree without one of these places doesn't have the code.
        ended: Changes that end it, each on its own; none if nothing does yet.
        switch: The adaptation without which the fault returns; empty if there is none.
        strategy: Prefix of `actor.strategy` in runs that reach the code (`fsdp` includes fsdp2); empty for all runs.
    """

    id: str
    title: str
    severity: str
    symptom: str
    metrics: str
    effect: str
    versions: str
    upstream: str
    code: tuple[Place, ...]
    ended: tuple[Ending, ...]
    switch: str = ""
    strategy: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """The files of a tree that the verdict reads."""
        cited = (*self.code, *(place for ending in self.ended for place in ending.places))
        return tuple(dict.fromkeys(place.file for place in cited))

    @property
    def witness(self) -> Path:
        """Path of the script that shows it."""
        return witnesses_root() / f"{self.id}.py"

    def concerns(self, strategy: str | None) -> bool:
        """Return whether a run with this `actor.strategy` may reach the code. None is an unknown strategy."""
        return strategy is None or strategy.startswith(self.strategy)


@cache
def known_faults() -> tuple[KnownFault, ...]:
    """Return the faults of catalogue.json, sorted by id. Raises NpuRlError if the file is invalid."""
    try:
        return tuple(parse_fault(name, row) for name, row in read_json(CATALOGUE_JSON).items())
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise NpuRlError(
            "Invalid catalogue of known faults", where=str(CATALOGUE_JSON), why=repr(error)
        ) from error


def parse_fault(name: str, row: Mapping[str, Any]) -> KnownFault:
    """Return the fault of a file's content. Raises TypeError or KeyError for an unknown or missing key."""
    code = tuple(Place(**place) for place in row["code"])
    ended = tuple(map(_ending, row["ended"]))
    return KnownFault(**{**row, "id": name, "code": code, "ended": ended})


def _ending(row: Mapping[str, Any]) -> Ending:
    """Return an ending, which has one place or a list of `places`."""
    place = {key: value for key, value in row.items() if key != "by"}
    return Ending(row["by"], tuple(Place(**one) for one in place.get("places", [place])))
