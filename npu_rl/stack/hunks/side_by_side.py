"""Expected and found lines side by side, for a hunk that does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

_WIDTH = 46  # of a column's text: two of them, with line numbers, in 110 columns
_AROUND = 3  # equal lines shown next to a difference


def side_by_side(
    old: Sequence[bytes], found: Sequence[bytes], *, stated: int, line: int, show_space: bool
) -> Iterator[str]:
    """Yield rows of two columns, each with its line numbers.

    Between them: `|` the line differs, `<` it is expected and absent, `>` it is there and not expected.

    Args:
        old: The preimage.
        found: The lines of the file.
        stated: The line of the preimage's first line.
        line: The line of the file's first line.
        show_space: Whether to draw tabs as → and spaces as · in lines that differ.
    """
    column = _WIDTH + 8
    yield f"{'  expected':<{column}}   found".rstrip()
    matcher = SequenceMatcher(None, found, old, autojunk=False)
    for tag, found_from, found_to, old_from, old_to in matcher.get_opcodes():
        rows = max(old_to - old_from, found_to - found_from)
        for row in range(rows):
            if tag == "equal" and _AROUND <= row < rows - _AROUND and rows > 2 * _AROUND + 1:
                if row == _AROUND:
                    yield f"        … {rows - 2 * _AROUND} equal lines …"
                continue
            left = old_from + row if old_from + row < old_to else None
            right = found_from + row if found_from + row < found_to else None
            wanted = b"" if left is None else old[left]
            there = b"" if right is None else found[right]
            mark = " " if tag == "equal" else "<" if right is None else ">" if left is None else "|"
            visible = show_space and mark == "|"
            start = _first_difference(wanted, there) if mark == "|" else 0
            cells = (
                _cell(left, stated, wanted, start, visible),
                _cell(right, line, there, start, visible),
            )
            yield f"{cells[0]:<{column}} {mark} {cells[1]}".rstrip()


def _first_difference(left: bytes, right: bytes) -> int:
    a, b = left.decode("utf-8", "replace"), right.decode("utf-8", "replace")
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _cell(index: int | None, first: int, raw: bytes, difference: int, visible: bool) -> str:
    if index is None:
        return ""
    text = raw.decode("utf-8", "replace")
    ended = text.endswith("\n")
    text = text.removesuffix("\n")
    if len(text) > _WIDTH and difference > _WIDTH - 10:
        text = "…" + text[difference - 20 :]
    text = text.replace("\r", "␍")
    text = text.replace("\t", "→").replace(" ", "·") if visible else text.replace("\t", "    ")
    text = "".join(c if c.isprintable() else "�" for c in text)  # a terminal must not obey a patch
    if not ended:
        text += " ⟨no newline⟩"
    if len(text) > _WIDTH:
        text = text[: _WIDTH - 1] + "…"
    return f"{first + index:>6}  {text}"
