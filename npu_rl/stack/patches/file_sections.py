"""Two sections of a patch for one file, the second on top of the first as `git apply` reads them, joined into one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from npu_rl.stack.patches.patch_model import FilePatch, Hunk, HunkLine, Tag
from npu_rl.stack.patches.scan_hunks import malformed


class _Section:
    """A section by the lines of the file between both, which are its new side (the first) or its old side.

    Attributes:
        lines: The known lines of that file, by index.
        others: The lines of the other side only, by the index that they are above.
        hunks: The hunk of each of these indices.
    """

    def __init__(self, file: FilePatch, other: Tag) -> None:
        self.lines: dict[int, HunkLine] = {}
        self.others: defaultdict[int, list[HunkLine]] = defaultdict(list)
        self.hunks: dict[int, Hunk] = {}
        for hunk in file.hunks:
            at = hunk.new_index if other == "-" else hunk.old_index
            for line in hunk.lines:
                self.hunks[at] = hunk
                if line.tag == other:
                    self.others[at].append(line)
                else:
                    self.lines[at] = line
                    at += 1


def in_one_section(first: FilePatch, second: FilePatch, where: str) -> FilePatch:
    """Return the change of both sections to the file as it is before the first. Its hunks have no numbers yet.

    Raises PatchError if the second does not fit the file that the first gives.
    """
    one, two = _Section(first, "-"), _Section(second, "+")
    differing = any(one.lines[at].raw != two.lines[at].raw for at in one.lines.keys() & two.lines.keys())
    hunks = tuple(_hunks(one, two))
    if differing or second.old_path is None or first.new_path is None or not hunks:
        raise malformed(
            f"The two sections for {first.path} do not fit together",
            where,
            f"The other one is at line {first.line}; the second has to fit the file that the first gives.",
        )
    return replace(first, new_path=second.new_path, hunks=hunks, ids=None)


def _hunks(one: _Section, two: _Section) -> Iterator[Hunk]:
    """Yield the hunks against the file before both sections."""
    earlier = later = 0  # lines that the first and the second section have added so far
    for run in _runs(one, two):
        hunk = one.hunks.get(run[0]) or two.hunks[run[0]]
        starts = run[0] - earlier, run[0] + later
        lines: list[HunkLine] = []
        for at in run:
            lines += [*one.others[at], *two.others[at]]
            line = one.lines.get(at) or two.lines.get(at)
            is_new = at in one.lines and one.lines[at].tag == "+"
            is_gone = at in two.lines and two.lines[at].tag == "-"
            earlier += is_new - len(one.others[at])
            later += len(two.others[at]) - is_gone
            if line is not None and not (is_new and is_gone):
                lines.append(line._replace(tag="+" if is_new else "-" if is_gone else " "))
        if any(line.tag != " " for line in lines):
            counts = [sum(line.tag != other for line in lines) for other in "+-"]
            old, new = (start + bool(count) for start, count in zip(starts, counts, strict=True))
            yield Hunk(0, hunk.line, old, counts[0], new, counts[1], hunk.section, tuple(lines))


def _runs(one: _Section, two: _Section) -> Iterator[list[int]]:
    """Yield the indices of the file between that belong to one hunk: those without a line missing between them."""
    run: list[int] = []
    for at in sorted(one.hunks.keys() | two.hunks.keys()):
        if run and not (at == run[-1] + 1 and (run[-1] in one.lines or run[-1] in two.lines)):
            yield run
            run = []
        run.append(at)
    if run:
        yield run
