"""The blocks around a line: a branch of an `if`, an argument list, a C++ class, a section or a build's stage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from npu_rl.stack.hunks.hunk_headings import SIGNATURE

_CONTINUES = re.compile(rb"[ \t]*(?:}[ \t]*)?(?:else|elif|except|finally|catch)\b")
_PYTHON_SCOPE = re.compile(rb"(?:async[ \t]+)?((?:def|class)[ \t]+\w+)")
_CLOSES = re.compile(rb"[ \t]*[)\]}]")
OPENS = (b"(", b"[")
_ASSIGNED = re.compile(rb"([\w., ]+?) = .*[(\[{]")
_REMARK = re.compile(rb"[ \t]*(?:#|//)")
_C_FAMILY = (".c", ".cc", ".cpp", ".cxx", ".cu", ".h", ".hh", ".hpp", ".cuh", ".inl")
_BRACES = (*_C_FAMILY, ".cs", ".go", ".java", ".js", ".jsx", ".kt", ".proto", ".rs", ".ts", ".tsx")
_TYPE = re.compile(
    rb"(?:template\s*<.*>\s*)?(?:[a-z]+(?:\([^)]*\))?\s+)*?"
    rb"((?:class|enum|impl|interface|message|namespace|service|struct|trait|union)\b(?:[^{(:;=]|::)*)"
)
_FUNCTION = re.compile(
    rb"(?!(?:case|catch|co_await|do|else|for|if|loop|match|new|return|switch|synchronized|throw|try|while|with)\b)"
    rb"([\w~][^(={\"']*)\((?:.*\)[^()=]*\{|[^\[{]*,)"
)
_LAMBDA = re.compile(rb"\[[^\]]*\]\s*(?:\(|\{|mutable)|=>")
_CONDITION = re.compile(rb"[ \t]*#[ \t]*(?:(if)|(el)|(endif))")
_STAGE = re.compile(rb"(?i:from)\s+(?:--\S+\s+)*([^\s:@]+)\S*(?:\s+(?i:as)\s+(\S+))?")
_TITLE = re.compile(rb"(#{1,6})[ \t]+\S")
_FENCE = re.compile(rb"[ \t]*(?:```|~~~)")


class BlockHead(NamedTuple):
    """The first line of a block.

    Attributes:
        text: The part that identifies the block, without parts that may change, such as a function's arguments.
        line: Its index.
        whole: The whole line.
        is_scope: Whether it is a class or function of Python.
        is_named: Whether it is a class or function of another language, and `text` its name.
    """

    text: bytes
    line: int
    whole: bytes
    is_scope: bool = False
    is_named: bool = False


def blocks_around(lines: Sequence[bytes], index: int, path: str) -> tuple[BlockHead, ...]:
    """Return the heads of the blocks around a line, the innermost first.

    The head of an `else` includes the one of its `if`; the head of a call over several lines, its first argument.
    """
    name = PurePosixPath(path).name
    if name.endswith((".md", ".rst")):
        return tuple(_titles(lines, index, is_underlined=name.endswith(".rst")))
    heads = list(_indented_blocks(lines, index, python=name.endswith((".py", ".pyi"))))
    if name.endswith(_BRACES):
        heads = [_named(head) for head in heads]
    if name.endswith(_C_FAMILY):
        heads += _conditions(lines, index)
    if name.startswith(("Dockerfile", "Containerfile")) or name.endswith((".Dockerfile", ".dockerfile")):
        heads += _stage(lines, index)
    return tuple(heads)


def indent(line: bytes) -> int:
    """Return the number of leading blanks of a line."""
    return len(line) - len(line.lstrip(b" \t"))


def _indented_blocks(lines: Sequence[bytes], index: int, *, python: bool) -> Iterator[BlockHead]:
    margin = indent(lines[index])
    while margin and (head := _line_above(lines, index, margin - 1)) is not None:
        index, margin = head, indent(lines[head])
        if _CLOSES.match(lines[index]) and not _CONTINUES.match(lines[index]):
            opened = _line_above(lines, index, margin)
            index = index if opened is None else opened
        first = _first_branch(lines, index)
        text = b" ... ".join(_head(lines, i, python) for i in dict.fromkeys((first, index)))
        is_scope = python and _PYTHON_SCOPE.match(lines[index].strip()) is not None
        yield BlockHead(text, index, lines[index].strip(), is_scope)
        index = first


def _named(head: BlockHead) -> BlockHead:
    """Return a head with its name as the text if it is a class or function of a language with braces."""
    if _LAMBDA.search(head.whole):
        return head
    if found := _TYPE.match(head.whole):
        return head._replace(text=found[1].strip().removesuffix(b" final"), is_named=True)
    found = _FUNCTION.fullmatch(head.whole)
    words = found[1].split() if found else []
    is_call = not words or (len(words) == 1 and head.whole.endswith(b","))  # a call over several lines
    return head if is_call else head._replace(text=words[-1], is_named=True)


def _line_above(lines: Sequence[bytes], index: int, most: int) -> int | None:
    """Return the next line above that is indented by at most `most`, skipping comments and blank lines."""
    above = range(index - 1, -1, -1)
    return next(
        (i for i in above if lines[i].strip() and not _REMARK.match(lines[i]) and indent(lines[i]) <= most),
        None,
    )


def _first_branch(lines: Sequence[bytes], index: int) -> int:
    """Return the line of the `if` or `try` that a line continues; the line itself if it continues none."""
    margin = indent(lines[index])
    first = index
    while _CONTINUES.match(lines[first]):
        above = _line_above(lines, first, margin)
        if above is None or indent(lines[above]) < margin:
            return index
        first = above
    return first


def _head(lines: Sequence[bytes], index: int, python: bool) -> bytes:
    text = lines[index].strip()
    if python and (scope := _PYTHON_SCOPE.match(text)):
        return scope[1]
    if assigned := _ASSIGNED.fullmatch(text):
        return assigned[1]  # what is called to make it may have another name
    if not python and SIGNATURE.match(text.decode("utf-8", "replace")):
        return text.partition(b"(")[0].strip()
    if text == b"{" or text.endswith(OPENS):  # of several calls of one name, the first argument tells which
        return b" ".join([text, next((line.strip() for line in lines[index + 1 :] if line.strip()), b"")])
    return text


def _conditions(lines: Sequence[bytes], index: int) -> Iterator[BlockHead]:
    """Yield the conditions of the preprocessor that a line is compiled under."""
    depth, branch = 0, None
    for i in range(index - 1, -1, -1):
        if not (found := _CONDITION.match(lines[i])):
            continue
        opens, goes_on, closes = found.groups()
        if closes:
            depth += 1
        elif depth:
            depth -= bool(opens)
        elif goes_on:
            branch = i if branch is None else branch
        else:
            at = i if branch is None else branch
            text = b" ... ".join(lines[one].strip() for one in dict.fromkeys((i, at)))
            yield BlockHead(text, at, lines[at].strip())
            branch = None


def _stage(lines: Sequence[bytes], index: int) -> Iterator[BlockHead]:
    """Yield the stage of a Dockerfile, by its name or else by the name of its image."""
    for i in range(index, -1, -1):
        if found := _STAGE.match(lines[i]):
            if i < index:
                yield BlockHead(b"FROM " + (found[2] or found[1]), i, lines[i].strip())
            return


def _titles(lines: Sequence[bytes], index: int, *, is_underlined: bool) -> Iterator[BlockHead]:
    """Yield the titles of the sections that a line of prose is in."""
    if is_underlined:
        for i in range(index - 2, -1, -1):
            under = lines[i + 1].strip()
            if lines[i].strip() and len(under) > 2 and len(set(under)) == 1 and not under[:1].isalnum():
                yield BlockHead(lines[i].strip(), i, lines[i].strip())
                return
        return
    in_fence = False
    titles: list[tuple[int, int]] = []  # level and line
    for i, line in enumerate(lines[:index]):
        if _FENCE.match(line):
            in_fence = not in_fence
        elif not in_fence and (title := _TITLE.match(line)):
            titles = [one for one in titles if one[0] < len(title[1])] + [(len(title[1]), i)]
    for _, i in reversed(titles):
        yield BlockHead(lines[i].strip(), i, lines[i].strip())
