"""Verdict on a tree: which known faults its code has, from the texts of its files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from npu_rl.faults.fault import WRONG_RESULT, KnownFault
from npu_rl.trainer_code.citations import CitedCode

ABSENT, ENDED, OPEN, SWITCHED_OFF = "not in this tree", "ended", "open", "switched off"


class Verdict(NamedTuple):
    """The state of one fault in a tree.

    Attributes:
        state: ABSENT, ENDED, OPEN, or SWITCHED_OFF: ended by a patch whose adaptation is off.
        by: The change that ended it; empty if none did.
        where: file:line of what ended it, or of the faulty code; for ABSENT, the place that is missing.
    """

    fault: KnownFault
    state: str
    by: str = ""
    where: str = ""

    @property
    def is_open(self) -> bool:
        """Whether a run has the fault."""
        return self.state in (OPEN, SWITCHED_OFF)

    @property
    def is_open_wrong_result(self) -> bool:
        """Whether a run has the fault, and it computes something wrong."""
        return self.is_open and self.fault.severity == WRONG_RESULT

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON."""
        fault = self.fault
        return {
            "id": fault.id,
            "title": fault.title,
            "severity": fault.severity,
            "state": self.state,
            "by": self.by,
            "where": self.where,
            "symptom": fault.symptom,
            "metrics": fault.metrics,
            "effect": fault.effect,
            "versions": fault.versions,
            "upstream": fault.upstream,
            "switch": fault.switch,
        }


def judge_tree(code: Path, faults: Iterable[KnownFault], off: Collection[str] = ()) -> tuple[Verdict, ...]:
    """Return the verdict on each fault.

    Args:
        code: The code folder.
        off: The adaptations that are switched off.
    """
    cited = CitedCode(code)
    return tuple(_verdict(fault, cited, off) for fault in faults)


def judge_files(read: Callable[[str], bytes | None], faults: Collection[KnownFault]) -> tuple[Verdict, ...]:
    """Return the verdict on each fault in a tree that is not laid anywhere.

    Args:
        read: Returns a file's content by its path in the code folder; None if the tree does not have it.
    """
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="npu-rl-faults-") as folder:
        for file in dict.fromkeys(_files(faults)):
            content = read(file)
            if content is not None:
                path = Path(folder, file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return judge_tree(Path(folder), faults)


def count_line(states: Iterable[tuple[str, str, str]]) -> str:
    """Return the one line that commands print: how many faults are known, and patched or open in this tree.

    Args:
        states: State, ending and severity of each fault.
    """
    rows = list(states)
    present = [row for row in rows if row[0] != ABSENT]
    unsolved = [severity for state, _, severity in present if state in (OPEN, SWITCHED_OFF)]
    patched = sum(by.startswith("patch ") for state, by, _ in present if state == ENDED)
    upstream = sum(state == ENDED for state, *_ in present) - patched
    wrong = unsolved.count(WRONG_RESULT)
    counts = [
        f"{patched} patched",
        *([f"{upstream} ended upstream"] if upstream else []),
        f"{len(unsolved)} open" + (f" ({wrong} with {WRONG_RESULT})" if wrong else ""),
    ]
    return f"known faults: {len(rows)}, {len(present)} in this code: {', '.join(counts)}"


def _files(faults: Iterable[KnownFault]) -> Iterator[str]:
    for fault in faults:
        yield from fault.files


def _verdict(fault: KnownFault, cited: CitedCode, off: Collection[str]) -> Verdict:
    where = ""
    for place in fault.code:
        status = cited.find(place)
        if not status.holds:
            return Verdict(fault, ABSENT, where=status.why.removeprefix("not in this tree: "))
        where = where or status.where
    for ending in fault.ended:
        found = [cited.find(place) for place in ending.places]
        if not all(status.holds for status in found):
            continue
        at = next((status.where for status in found if status.where), where)
        state = SWITCHED_OFF if ending.is_patch and fault.switch in off else ENDED
        return Verdict(fault, state, ending.by, at)
    return Verdict(fault, OPEN, where=where)
