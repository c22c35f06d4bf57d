"""Known symptoms in logs, from symptoms.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import parse_yaml, read_file

_FILE = Path(__file__).with_name("symptoms.yaml")
_ADDRESS = r"(?P<address>[0-9A-Za-z.:%_-]{1,64}?)"
# What Ray's driver prints when a node stops answering (src/ray/gcs/gcs_server/gcs_node_manager.cc@2.42.1).
NODE_MARKED_DEAD = re.compile(
    rf"node with node id: \w+ and address: {_ADDRESS} and node name: \S+ has been marked dead"
)
# What Python prints when compiled code crashes. Not "Aborted", by which a timeout ends a process, too.
CRASHED = re.compile(r"Fatal Python error: (?:Segmentation fault|Bus error|Illegal instruction)")
# How Ray 2.42.1 ends a driver whose local Ray did not come up in time (core_worker.cc:496, _private/node.py:352).
RAY_NOT_STARTED = re.compile(
    r"Failed to register worker (?:\w+ )?to Raylet|The current node timed out during startup"
)
# What ranks print that waited for another, or lost it.
_OF_OTHERS = ("lost-nodes", "network", "dead-processes")


@dataclass(frozen=True)
class Symptom:
    """A known symptom.

    Attributes:
        pattern: Searched in the plain text of a log.
        cause: Text in which {address} is what the pattern's group of that name has found.
        source: OWNER#NUMBER of an issue thread, or path@version.
        sample: A line of a log that has the pattern, as the program wrote it.
        one_machine: Other words, `cause` and `fix`, for a run on one node.
        group: The group's id.
    """

    pattern: re.Pattern[str]
    cause: str
    fix: str
    source: str
    sample: str
    one_machine: Mapping[str, str]
    group: str

    @property
    def of_others(self) -> bool:
        """Whether other ranks print it when one is gone."""
        return self.group in _OF_OTHERS

    def cause_in(self, found: re.Match[str], *, one_machine: bool = False) -> str:
        """Return the cause with the address found in the log, or "an unnamed node"."""
        cause = self.one_machine.get("cause", self.cause) if one_machine else self.cause
        if "{address}" not in cause:
            return cause
        return cause.replace("{address}", found.groupdict().get("address") or "an unnamed node")

    def fix_for(self, *, one_machine: bool) -> str:
        """Return what to do, in a run on one node or on several."""
        return self.one_machine.get("fix", self.fix) if one_machine else self.fix


@cache
def symptom_groups() -> Mapping[str, tuple[Symptom, ...]]:
    """Return the symptoms by their group's heading."""
    document = parse_yaml(read_file(_FILE))
    return {
        group["heading"]: tuple(_symptom(row, group["id"], document["shared"]) for row in group["symptoms"])
        for group in document["groups"]
    }


@cache
def symptoms() -> tuple[Symptom, ...]:
    """Return all symptoms, the most specific first."""
    return tuple(one for group in symptom_groups().values() for one in group)


def _symptom(row: Mapping[str, Any], group: str, shared: Mapping[str, Any]) -> Symptom:
    fix = shared.get(row["fix"], row)
    pattern = re.compile(row["pattern"].replace("<address>", _ADDRESS))
    return Symptom(
        pattern, row["cause"], fix["fix"], row["source"], row["sample"], fix.get("one_machine", {}), group
    )
