"""Verdicts on a tree: which known faults its source code has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from npu_rl.recipes.faults.fault import WRONG_RESULT, KnownFault
from npu_rl.recipes.trainer_code.citations import CitedCode

ABSENT, ENDED, OPEN, SWITCHED_OFF = "not in this tree", "ended", "open", "switched off"
UNKNOWN = "not known"  # a file that the verdict rests on can't be read


class Verdict(NamedTuple):
    """The state of one fault in a tree.

    Attributes:
        state: ABSENT, ENDED, OPEN, SWITCHED_OFF (ended by a patch whose adaptation is off), or UNKNOWN.
        by: The change that ended it; empty if none did.
        where: file:line of what ended it, or of the faulty code; for ABSENT, the missing place; for UNKNOWN, the file.
    """

    fault: KnownFault
    state: str
    by: str = ""
    where: str = ""

    @property
    def is_open(self) -> bool:
        """Return whether a run has the fault."""
        return self.state in (OPEN, SWITCHED_OFF)

    @property
    def is_open_wrong_result(self) -> bool:
        """Return whether a run has the fault, and its results are wrong."""
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
            "strategy": fault.strategy,
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
    """Return the verdict on each fault in a tree that isn't checked out on disk.

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


def count_line(verdicts: Iterable[Verdict], strategy: str | None = "") -> str:
    """Return the line that commands print: the number of known faults, and how many are patched or open in this tree.

    Args:
        strategy: The recipe's `actor.strategy`. Faults of another one are counted apart; without a recipe ("") those of
            each strategy, and none where it is unknown (None).
    """
    found = list(verdicts)
    unknown = sum(one.state == UNKNOWN for one in found)
    present = [one for one in found if one.state not in (ABSENT, UNKNOWN)]
    ended = [one for one in present if not one.is_open]
    patched = sum(one.by.startswith("patch ") for one in ended)
    unsolved = [one for one in present if one.is_open]
    counts = [f"{patched} patched"]
    if len(ended) > patched:
        counts.append(f"{len(ended) - patched} ended upstream")
    here = [one for one in unsolved if one.fault.concerns(strategy)]
    counts.append(f"{len(here)} open{_wrong(here)}")
    for name in sorted({one.fault.strategy for one in unsolved if one not in here}):
        others = [one for one in unsolved if one.fault.strategy == name]
        counts.append(f"{len(others)} more with actor.strategy {name}{_wrong(others)}")
    if unknown:
        counts.append(f"{unknown} not known: files can't be read")
    return f"known faults: {len(found)}, {len(present)} in this code: {', '.join(counts)}"


def _wrong(verdicts: Sequence[Verdict]) -> str:
    count = sum(one.is_open_wrong_result for one in verdicts)
    return f" ({count} with {WRONG_RESULT})" if count else ""


def _files(faults: Iterable[KnownFault]) -> Iterator[str]:
    for fault in faults:
        yield from fault.files


def _verdict(fault: KnownFault, cited: CitedCode, off: Collection[str]) -> Verdict:
    unreadable = next((file for file in fault.files if cited.is_unreadable(file)), "")
    if unreadable:
        return Verdict(fault, UNKNOWN, where=unreadable)
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
