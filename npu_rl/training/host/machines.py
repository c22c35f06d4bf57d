"""Requirements on each kind of machine, from machines.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import parse_yaml, read_file

_FILE = Path(__file__).with_name("machines.yaml")
KINDS = ("a3", "a2", "950", "npu", "cuda", "cpu")


@dataclass(frozen=True)
class Expectation:
    """A required value of a machine, and its source."""

    value: Any
    source: str


@dataclass(frozen=True)
class MachineKind:
    """A kind of machine.

    Attributes:
        unproven: Why its values are not proven; "" if they are published.
    """

    name: str
    title: str
    unproven: str
    values: dict[str, Expectation]

    def __getitem__(self, name: str) -> Expectation:
        """Return a value of this kind, or one common to all kinds. Raises KeyError."""
        return self.values[name]

    def get(self, name: str) -> Expectation | None:
        """Return a value; None if nothing is expected."""
        return self.values.get(name)


@cache
def machine_kind(name: str) -> MachineKind:
    """Return a kind of KINDS."""
    document = parse_yaml(read_file(_FILE))
    own = document[name]
    values = {
        key: Expectation(entry["value"], entry["source"])
        for key, entry in {**document["all"], **own}.items()
        if isinstance(entry, dict)
    }
    return MachineKind(name, own["title"], own.get("unproven", ""), values)
