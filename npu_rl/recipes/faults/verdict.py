"""The state of known faults in a code tree, by the texts of its files and of the lock that it was made from.

A text search sees no fix written in other words, and none that a later change undoes: where a patch that npu-rl does
not ship touches a file after the fix, the state is UNPROVEN until the witness runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from npu_rl.recipes.faults.fault import WRONG_RESULT, Ending, KnownFault, known_faults
from npu_rl.recipes.trainer_code.citations import CitedCode

ABSENT, ENDED, OPEN, SWITCHED_OFF = "not in this tree", "ended", "open", "switched off"
UNPROVEN = "unproven"  # ended by the texts, but another patch touches the file after the fix
UNKNOWN = "not known"  # a file that the verdict rests on can't be read
STATES = (OPEN, SWITCHED_OFF, UNKNOWN, UNPROVEN, ENDED, ABSENT)

Patches = Mapping[str, Sequence[tuple[str, bool]]]
"""Patches that touch a file of the tree, in order: COMPONENT/VERSION/NAME or path, and whether npu-rl ships it."""


class Verdict(NamedTuple):
    """The state of one fault in a tree.

    Attributes:
        state: One of STATES; SWITCHED_OFF is ended by a patch whose adaptation is off.
        by: The change that ended it; empty if none did.
        where: file:line of what ended it, or of the faulty code; for ABSENT, the missing place; for UNKNOWN, the file.
        after: For UNPROVEN, the patch that touches the file after the fix.
    """

    fault: KnownFault
    state: str
    by: str = ""
    where: str = ""
    after: str = ""

    @property
    def is_open(self) -> bool:
        """Return whether a run has the fault."""
        return self.state in (OPEN, SWITCHED_OFF)

    @property
    def is_open_wrong_result(self) -> bool:
        """Return whether a run has the fault, and its results are wrong."""
        return self.is_open and self.fault.severity == WRONG_RESULT


def judge_tree(
    code: Path, faults: Iterable[KnownFault], off: Collection[str] = (), patches: Patches | None = None
) -> tuple[Verdict, ...]:
    """Return the verdict on each fault.

    Args:
        code: The code folder.
        off: The adaptations that are switched off.
        patches: `assemble.patches_by_file` of the lock; None is a tree without one.
    """
    cited = CitedCode(code)
    return tuple(_verdict(fault, cited, off, patches or {}) for fault in faults)


def judge_files(
    read: Callable[[str], bytes | None], faults: Collection[KnownFault], patches: Patches | None = None
) -> tuple[Verdict, ...]:
    """Return the verdict on each fault in a tree that isn't checked out on disk.

    Args:
        read: Returns a file's content by its path in the code folder; None if the tree does not have it.
        patches: `assemble.patches_by_file` of the lock.
    """
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="npu-rl-faults-") as folder:
        for file in {file for fault in faults for file in fault.files}:
            content = read(file)
            if content is not None:
                path = Path(folder, file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return judge_tree(Path(folder), faults, patches=patches)


def faults_line(code: Path, off: Collection[str] = (), strategy: str | None = "") -> str:
    """Return `count_line` of a tree."""
    return count_line(judge_tree(code, known_faults(), off), strategy)


def count_line(verdicts: Iterable[Verdict], strategy: str | None = "") -> str:
    """Return the line that commands print: the number of known faults, and how many are patched or open in this tree.

    Args:
        strategy: The recipe's `actor.strategy`. Faults of another one are counted apart; without a recipe ("") those of
            each strategy, and none where it is unknown (None).
    """
    found = list(verdicts)
    present = [one for one in found if one.state not in (ABSENT, UNKNOWN)]
    ended = [one for one in present if one.state == ENDED]
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
    for state, why in ((UNPROVEN, "run the witnesses"), (UNKNOWN, "files can't be read")):
        if number := sum(one.state == state for one in found):
            counts.append(f"{number} {state}: {why}")
    return f"known faults: {len(found)}, {len(present)} in this code: {', '.join(counts)}"


def _wrong(verdicts: Sequence[Verdict]) -> str:
    count = sum(one.is_open_wrong_result for one in verdicts)
    return f" ({count} with {WRONG_RESULT})" if count else ""


def _verdict(fault: KnownFault, cited: CitedCode, off: Collection[str], patches: Patches) -> Verdict:
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
        if ending.patches and fault.switch in off:
            return Verdict(fault, SWITCHED_OFF, ending.by, at)
        after = next(_later_patches(fault, ending, patches), "")
        return Verdict(fault, UNPROVEN if after else ENDED, ending.by, at, after)
    return Verdict(fault, OPEN, where=where)


def _later_patches(fault: KnownFault, ending: Ending, patches: Patches) -> Iterator[str]:
    """Yield patches of others that touch a file of the fault after the fix; upstream's fix is before all patches."""
    for file in dict.fromkeys(place.file for place in (*ending.places, *fault.code)):
        touching = patches.get(file, ())
        fixed = max(
            (number for number, (name, _) in enumerate(touching) if name in ending.patches), default=-1
        )
        yield from (name for name, ours in touching[fixed + 1 :] if not ours)
