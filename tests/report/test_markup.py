"""Text of others never becomes markup: whatever it is, a parser finds it again as text, and no element more."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from npu_rl.common.printable import printable
from npu_rl.training.report.markup import Markup, folded, joined, table, tag

PIECES = st.sampled_from(
    [
        "</script>",
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "&lt;",
        "&#60;",
        "<!--",
        "-->",
        "]]>",
        "\u202e",
        "\u2066",
        "\u200b",
        "\x00",
        "\x1b[31m",
        "\ud800",
        "\udcff",
        '" onload="',
        "' x='",
        "\r\n",
        "</td></table>",
    ]
)
TEXTS = st.lists(PIECES | st.text(), max_size=6).map("".join)


class Read(HTMLParser):
    """What a parser sees: elements with their attributes, and text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def read(markup: str) -> Read:
    reader = Read()
    reader.feed(markup)
    reader.close()
    return reader


@given(TEXTS)
def test_text_stays_text(text: str) -> None:
    found = read(tag("p", text, title=text))
    assert found.text == printable(text)
    assert found.tags == [("p", {"title": printable(text)})]
    assert printable(text).replace("\n", "").replace("\t", "").isprintable()


@given(TEXTS, TEXTS)
def test_tables_and_folds_have_the_elements_they_are_built_of(head: str, cell: str) -> None:
    found = read(table((head,), [(cell,), (tag("b", cell),)]))
    assert [name for name, _ in found.tags] == [
        "table",
        "thead",
        "tr",
        "th",
        "tbody",
        "tr",
        "td",
        "tr",
        "td",
        "b",
    ]
    assert read(folded(head, cell)).text == printable(head) + printable(cell)


def test_only_markup_is_put_in_as_it_is() -> None:
    assert joined(["<b>", Markup("<i>x</i>")]) == "&lt;b&gt;<i>x</i>"
    assert tag("meta", http_equiv="refresh", name_="x") == '<meta http-equiv="refresh" name="x">'


def test_what_is_larger_than_anything_of_ours_is_cut_and_says_so() -> None:
    found = read(table(("x",), [("y" * 300_000,)] * 2 + [("z",)] * 6000))
    assert found.text.count("100,000 characters left out") == 2
    assert "1002 more rows are left out" in found.text
    assert found.text.count("z") == 4998
