"""Check that a hunk is in the function it was made for.

git and GNU diff write a heading after a hunk's second `@@`: the last line above the hunk that their pattern for
functions matches. Lines alone can't tell twins apart: a hunk of `one` fits `two` as well if both have the same lines.
So the heading that git would write at the place found is compared with the hunk's own; and of several Python
functions of one name, the one nearest to the stated line is the one that is meant. The same holds for the sections of
configuration files (`key_headings.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from npu_rl.common.bounded import syntax_tree
from npu_rl.stack.hunks.key_headings import (
    GIT_LINE,
    SHORTEST_CUT,
    describe_heading,
    in_other_section,
    indent,
    last_match,
    moved_to_other_section,
)
from npu_rl.stack.hunks.key_paths import SUFFIXES
from npu_rl.stack.patches.patch_model import Hunk

if TYPE_CHECKING:
    import ast

_PYTHON = (".py", ".pyi")
# git's pattern for `*.py diff=python`, which GitHub uses too.
_PYTHON_LINE = re.compile(r"[ \t]*(?:class|(?:async[ \t]+)?def)[ \t]")
_DEFINITION = re.compile(r"(?:async[ \t]+)?(?P<kind>class|def)[ \t]+(?P<name>\w+)(?P<rest>.?)")
SIGNATURE = re.compile(  # `int two(`, of most languages; not a command of a shell that looks like it
    r"(?!(?:if|elif|else|while|until|for|done|case|switch|return|function)\b)[A-Za-z_][\w\s*&:<>,~]*\("
)
PROSE = (".md", ".rst", ".txt", ".html")  # no functions


class PythonDefinition(NamedTuple):
    """A `def` or `class`.

    Attributes:
        first: Its first line, from 1, decorators included.
        last: Its last line.
        name: Its name with those of the definitions around it (`Attention.forward`).
        is_class: Whether it is a class.
    """

    first: int
    last: int
    name: str
    is_class: bool

    @property
    def last_name(self) -> str:
        """The name without those of the definitions around it."""
        return self.name.rpartition(".")[2]

    def distance(self, line: int) -> int:
        """Return the number of lines between the definition and a line; 0 for a line inside it."""
        return max(self.first - line, line - self.last, 0)


def misplaced(content: bytes, hunk: Hunk, line: int, path: str) -> str | None:
    """Return why the heading of a hunk that fits at a line names another function or section; None if it does not.

    A heading that is no longer in the file shows nothing, unless it names a Python function.
    """
    if path.endswith(SUFFIXES):
        return in_other_section(content, hunk, line, path)
    heading = hunk.section.strip().rstrip("\N{REPLACEMENT CHARACTER}")
    if not heading or path.endswith(PROSE):
        return None
    lines = _lines(content)
    candidates = [last_match(GIT_LINE.match, lines, line)]
    wanted = _DEFINITION.match(heading) if path.endswith(_PYTHON) else None
    if wanted is not None:
        candidates.append(last_match(_PYTHON_LINE.match, lines, line))
        if any(_same_definition(lines[n - 1], wanted, heading) for n in candidates if n):
            return None
        if _between_functions(content, hunk, line, wanted["name"]):
            return None
    else:
        places = [n for n, text in enumerate(lines, 1) if text.strip().startswith(heading)]
        if not places or candidates[0] in places:
            return None
        nearest = max((n for n in places if n < line), default=None)
        between = lines[nearest : line - 1] if nearest else []
        if nearest and not any(_may_match_one_pattern(lines[nearest - 1], text) for text in between):
            return None  # the heading was chosen by another pattern
    here = _describe_place(content, lines, max((n for n in candidates if n), default=None), line, path)
    return f"It fits at line {line}, {here}; {_describe_heading(lines, wanted, heading)}."


def _between_functions(content: bytes, hunk: Hunk, line: int, name: str) -> bool:
    """Return whether the change is in no function, so that the heading is only the function above it.

    In a class it must not name a method of other classes only.
    """
    definitions = definitions_of(content)
    if definitions is None:
        return False
    at = line + next(hunk.changes()).at
    around = [enclosing_definition(definitions, n) for n in (max(at - 1, line), at)]
    if any(found is not None and not found.is_class for found in around):
        return False
    holders = [d.name.rpartition(".")[0] for d in definitions if d.last_name == name]
    return not holders or all(found is None or found.name in holders for found in around)


def moved_to_twin(content: bytes, hunk: Hunk, offset: int, path: str) -> str | None:
    """Return why a moved hunk may be in the wrong function or section, with a twin nearer to its line; or None."""
    if path.endswith(SUFFIXES):
        return moved_to_other_section(content, hunk, offset, path)
    definitions = definitions_of(content) if path.endswith(_PYTHON) else None
    if not definitions:
        return None
    change = next(hunk.changes()).at
    stated = hunk.old_index + 1 + change
    found = enclosing_definition(definitions, stated + offset)
    if found is None:
        return None
    twins = [d for d in definitions if d.last_name == found.last_name]
    nearest = min(twins, key=lambda d: d.distance(stated))
    if nearest.distance(stated) == found.distance(stated):
        return None
    return (
        f"It fits at line {hunk.old_index + 1 + offset} only, in {found.name} (line {found.first}); "
        f"its line {hunk.old_index + 1} is nearer to {nearest.name} (line {nearest.first})."
    )


def _lines(content: bytes) -> list[str]:
    return [line.decode("utf-8", "replace").rstrip("\r") for line in content.split(b"\n")]


def _same_definition(text: str, wanted: re.Match[str], heading: str) -> bool:
    found = _DEFINITION.match(text.strip())
    if found is None or found["kind"] != wanted["kind"]:
        return False
    cut = not wanted["rest"] and len(heading) >= SHORTEST_CUT
    return found["name"].startswith(wanted["name"]) if cut else found["name"] == wanted["name"]


def _may_match_one_pattern(one: str, other: str) -> bool:
    """Return whether a pattern for functions that matches one line may match the other, too."""
    if indent(one) != indent(other) or not other.strip():
        return False
    if one.split()[0] == other.split()[0]:
        return True
    return all(SIGNATURE.match(text) for text in (one, other))


def _describe_place(content: bytes, lines: Sequence[str], heading: int | None, line: int, path: str) -> str:
    """Describe a place for people: its function, or the heading above it."""
    definitions = definitions_of(content) if path.endswith(_PYTHON) else None
    found = enclosing_definition(definitions, line) if definitions else None
    if found is not None:
        return f"in {found.name} (line {found.first})"
    return f"below `{lines[heading - 1].strip()}` (line {heading})" if heading else "above every function"


def _describe_heading(lines: Sequence[str], wanted: re.Match[str] | None, heading: str) -> str:
    if wanted is None:
        places = [n for n, text in enumerate(lines, 1) if text.strip().startswith(heading)]
    else:
        places = [n for n, text in enumerate(lines, 1) if _same_definition(text, wanted, heading)]
    if not places:
        return f"its heading is `{heading}`, which is not in the file"
    return describe_heading(heading, places)


@lru_cache(maxsize=4)  # a place is judged and then described: twice as much CPU time for `patches lint`
def definitions_of(content: bytes) -> list[PythonDefinition] | None:
    """Return every function and class of a Python file; None if the file has no syntax tree within the limits."""
    tree = syntax_tree(content)
    return None if tree is None else list(_walk_definitions(tree))


def _walk_definitions(tree: ast.AST) -> Iterator[PythonDefinition]:
    import ast

    pending: list[tuple[ast.AST, str]] = [(tree, "")]
    while pending:
        node, name = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{name}.{node.name}" if name else node.name
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield PythonDefinition(
                first, node.end_lineno or node.lineno, name, isinstance(node, ast.ClassDef)
            )
        children = ast.iter_child_nodes(node)
        pending.extend((child, name) for child in children if not isinstance(child, ast.expr))


def enclosing_definition(definitions: Sequence[PythonDefinition], line: int) -> PythonDefinition | None:
    """Return the innermost definition that contains the line, or None."""
    inside = [d for d in definitions if d.first <= line <= d.last]
    return min(inside, key=lambda d: d.last - d.first, default=None)
