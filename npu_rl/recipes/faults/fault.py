"""Known silent faults as data. A script in witnesses/ demonstrates each fault.

Read from catalogue.json, which `.ci/regenerate` writes from the YAML files in catalogue/ (`catalogue_files.py`). Every
`setup` imports this; a NamedTuple is defined in a seventh of a dataclass's time (0.1 ms for four fields, not 0.7).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from npu_rl.common.bounded import read_json
from npu_rl.common.errors import NpuRlError
from npu_rl.recipes.trainer_code.citations import Place

WRONG_RESULT = "wrong result"
SEVERITIES = (WRONG_RESULT, "dies", "hangs", "slow", "latent")
"""Kinds of effect, the worst first. The first is the one that no message and no crash ever shows."""

STAND_INS = ("npu", "vllm", "apex")

_ROOM = Path(__file__).resolve().parent
_JSON = _ROOM / "catalogue.json"
WITNESSES = _ROOM / "witnesses"

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_TEXTS = ("title", "severity", "symptom", "metrics", "effect", "versions", "upstream")
_KEYS = {*_TEXTS, "code", "ended", "switch", "strategy", "witness"}


class Ending(NamedTuple):
    """One change that fixes a fault.

    Attributes:
        by: "patch COMPONENT/VERSION/NAME", or the upstream component with its commit or version.
        places: Texts that are there, or absent, once it is made; all have to hold.
    """

    by: str
    places: tuple[Place, ...]

    @property
    def is_patch(self) -> bool:
        """Return whether a patch of npu-rl fixes the fault."""
        return self.by.startswith("patch ")


class Witness(NamedTuple):
    """The script that demonstrates a fault by running the tree's own functions.

    Attributes:
        script: Its name in witnesses/.
        standins: Roots of stand-ins that PYTHONPATH needs besides the injected one.
        environment: Variables to set.
    """

    script: str
    standins: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def path(self) -> Path:
        """Path of the script."""
        return WITNESSES / self.script


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
    witness: Witness
    switch: str = ""
    strategy: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """The files of a tree that the verdict reads."""
        cited = (*self.code, *(place for ending in self.ended for place in ending.places))
        return tuple(dict.fromkeys(place.file for place in cited))

    def concerns(self, strategy: str | None) -> bool:
        """Return whether a run with this `actor.strategy` may reach the code. None is an unknown strategy."""
        return strategy is None or strategy.startswith(self.strategy)


@cache
def known_faults() -> tuple[KnownFault, ...]:
    """Return the faults of catalogue.json, sorted by id. Raises NpuRlError if the file is invalid."""
    try:
        return tuple(parse_fault(name, row) for name, row in read_json(_JSON).items())
    except (OSError, ValueError, AttributeError) as error:
        raise NpuRlError("Invalid catalogue of known faults", where=str(_JSON), why=str(error)) from error


def parse_fault(name: str, data: Any) -> KnownFault:
    """Parse a fault from a file's content. Raises ValueError if it is invalid."""
    if not _ID.fullmatch(name):
        raise ValueError(f"invalid id {name!r}: lower-case words joined by hyphens are expected")
    row = _mapping(data, "the file", {*_TEXTS, "code", "ended", "witness"}, _KEYS)
    texts = {key: _text(row[key], key) for key in _TEXTS}
    if texts["severity"] not in SEVERITIES:
        raise ValueError(f"severity: unknown {texts['severity']!r}; one of: {', '.join(SEVERITIES)}")
    code = tuple(_place(one, "code") for one in _rows(row["code"], "code"))
    # An empty list: nothing ends it yet, and the recipe or the manifest goes around it.
    ended = tuple(_ending(one) for one in (_rows(row["ended"], "ended") if row["ended"] != [] else []))
    switch = _text(row["switch"], "switch") if "switch" in row else ""
    strategy = _text(row["strategy"], "strategy") if "strategy" in row else ""
    witness = _witness(row["witness"])
    return KnownFault(
        name, **texts, code=code, ended=ended, witness=witness, switch=switch, strategy=strategy
    )


def _place(data: Any, key: str, more: Sequence[str] = ()) -> Place:
    row = _mapping(data, key, {"file", "text", *more}, {"file", "text", "absent", *more})
    if not isinstance(row.get("absent", False), bool):
        raise ValueError(f"{key}.absent: true or false is expected")
    # The text as it is: its spaces are those of the file.
    if not isinstance(row["text"], str) or not row["text"].strip():
        raise ValueError(f"{key}.text: a text is expected")
    return Place(_text(row["file"], f"{key}.file"), row["text"], absent=row.get("absent", False))


def _ending(data: Any) -> Ending:
    """Parse an ending, which has one place or a list of `places`."""
    if isinstance(data, dict) and "places" in data:
        row = _mapping(data, "ended", {"by", "places"}, {"by", "places"})
        places = tuple(_place(one, "ended.places") for one in _rows(row["places"], "ended.places"))
        return Ending(_text(row["by"], "ended.by"), places)
    return Ending(_text(dict(data or {}).get("by"), "ended.by"), (_place(data, "ended", ("by",)),))


def _witness(data: Any) -> Witness:
    row = _mapping(data, "witness", {"script"}, {"script", "standins", "environment"})
    standins = tuple(_text(one, "witness.standins") for one in row.get("standins") or ())
    unknown = [one for one in standins if one not in STAND_INS]
    if unknown:
        raise ValueError(f"witness.standins: unknown {unknown[0]!r}; one of: {', '.join(STAND_INS)}")
    script = _text(row["script"], "witness.script")
    if Path(script).name != script or not script.endswith(".py"):
        raise ValueError(f"witness.script: {script!r} is not the name of a script in witnesses/")
    environment = row.get("environment") or {}
    if not isinstance(environment, dict):
        raise ValueError("witness.environment: variables with their values are expected")
    variables = tuple(environment.items())
    if not all(isinstance(part, str) for pair in variables for part in pair):
        raise ValueError("witness.environment: texts are expected")
    return Witness(script, standins, variables)


def _mapping(data: Any, key: str, needed: set[str], known: set[str]) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"{key}: keys with values are expected")
    missing, unknown = sorted(needed - data.keys()), sorted(map(str, data.keys() - known))
    if missing or unknown:
        raise ValueError(f"{key}: {'missing' if missing else 'unknown'} key {(missing or unknown)[0]!r}")
    return data


def _rows(data: Any, key: str) -> Sequence[Any]:
    if not isinstance(data, list) or not data:
        raise ValueError(f"{key}: a list is expected")
    return data


def _text(value: Any, key: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key}: a text is expected, not {value!r}")
    return value.strip()
