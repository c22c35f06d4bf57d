"""HTML building with automatic escaping: everything except `Markup` is escaped on insertion.

Control characters, bidirectional controls and other invisible characters are written as escapes, as on a terminal.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from npu_rl.common.printable import printable

_VOID = {"meta", "br", "hr"}
_MOST_ROWS = 5000  # of a table; the largest stack has some 200 of one kind
_LONGEST = 200_000  # characters of a text


class Markup(str):
    """HTML built by this module."""

    __slots__ = ()


def tag(name: str, *children: str | Markup, **attributes: str) -> Markup:
    """Return an element.

    Args:
        children: Text, which is escaped, or markup.
        attributes: Their values are escaped. `class_` is class, and `_` in a name is `-`.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(value)}"' for key, value in attributes.items()
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{joined(children)}</{name}>")


def joined(parts: Iterable[str | Markup], between: str = "") -> Markup:
    """Join parts to one Markup. Plain text among them is escaped."""
    return Markup(between.join(part if isinstance(part, Markup) else _escaped(part) for part in parts))


def written_length(text: str) -> int:
    """Return the characters that a text is written with: up to ten for an invisible one, six for a quotation mark."""
    return len(_escaped(text))


def table(heads: Sequence[str], rows: Iterable[Sequence[str | Markup]], **attributes: str) -> Markup:
    """Return a table. On a narrow screen each row becomes a list of its cells with their heads."""
    listed = list(rows)
    left_out = len(listed) - _MOST_ROWS
    head = tag("tr", *(tag("th", name, scope="col") for name in heads))
    body = [
        tag("tr", *(tag("td", cell, data_label=name) for name, cell in zip(heads, row, strict=True)))
        for row in listed[:_MOST_ROWS]
    ]
    if left_out > 0:
        body.append(tag("tr", tag("td", f"{left_out} more rows are left out", data_label="")))
    return tag("table", tag("thead", head), tag("tbody", joined(body)), **attributes)


def folded(summary: str, *content: str | Markup) -> Markup:
    """Return content that its heading expands, even without scripts."""
    return tag("details", tag("summary", summary), *content)


def section(title: str, id: str, *content: str | Markup) -> Markup:
    """Return a section with its heading."""
    return tag("section", tag("h2", title), *content, id=id)


def _escaped(text: str) -> str:
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} [... {len(text) - _LONGEST:,} characters left out]"
    return html.escape(printable(text), quote=True)
