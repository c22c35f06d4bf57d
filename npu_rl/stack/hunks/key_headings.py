"""Check that a hunk of a configuration file is in the section it was made for.

Sections such as verl's actor, ref and critic are twins: a hunk of one fits the others. git's heading is the last line
above the hunk that begins with a letter; a heading by another pattern, or a key path by hand (`actor.optim`), may name
any key. In a file that is not valid, only the text of its lines is compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from npu_rl.stack.hunks.hunk_match import split_lines
from npu_rl.stack.hunks.key_paths import SUFFIXES, KeyPlace, Names, read_keys
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_model import Hunk

GIT_LINE = re.compile(r"[A-Za-z_$]")  # git's and GNU diff's pattern for a heading
SHORTEST_CUT = 39  # letters of the shortest heading that was cut off: GNU diff keeps 40, git 80
_NAME = re.compile(r"""\s*(?:-\s+)?(?P<name>"(?:[^"\\]|\\.)*"\s*|'[^']*'\s*|[^\s:=#\[\]{}][^:=#]*)[:=]""")
_HUNK_LINE = re.compile(rb"^(?P<places>@@ -\d[\d,]* \+\d[\d,]* @@)(?P<heading>.*)$", re.MULTILINE)
_PLAIN_PATH = re.compile(r"[\w.\[\]/@+ -]{1,200}")
_OPENING = re.compile(r"\s*(?:[^\s#].*[:{\[]|\[.*\])\s*(?:#.*)?")  # `actor:`, `"actor": {`, `[actor]`


def with_key_paths(patch: bytes, content: bytes, path: str) -> bytes:
    """Return git's patch of one file, with key paths in place of headings that can't distinguish twins.

    git's heading is a key of the first column, so `actor` and `ref` below one key share it, and JSON has none.
    `content` is the file before the patch.
    """
    keys = read_keys(content, path) if path.endswith(SUFFIXES) and _HUNK_LINE.search(patch) else None
    if not keys:
        return patch
    hunks = iter(parse_patch(patch, name=path).files[0].hunks)

    def headed(found: re.Match[bytes]) -> bytes:
        hunk = next(hunks)
        section = _changed_section(content, keys, hunk, hunk.old_index + 1, path)
        name = ".".join(section[0]) if section else ""
        heading = found["heading"].decode("utf-8", "replace").strip()
        if not _PLAIN_PATH.fullmatch(name) or ("." not in name and _name(heading) == name):
            # `actor:` says the same; of a flat section in TOML git's is the key above, such as `lr = 1`.
            return found[0]
        return found["places"] + b" " + name.encode()

    return _HUNK_LINE.sub(headed, patch)


def in_other_section(content: bytes, hunk: Hunk, line: int, path: str) -> str | None:
    """Return why the heading of a hunk that fits at a line names another section; None if it does not.

    A heading whose key is no longer in the file shows nothing.
    """
    heading = hunk.section.rstrip().rstrip("\N{REPLACEMENT CHARACTER}")
    if not heading.strip():
        return None
    lines = [text.decode("utf-8", "replace").rstrip("\r\n") for text in split_lines(content)]
    places = _places(heading, lines)
    if last_match(GIT_LINE.match, lines, line) in places:
        return None
    keys = read_keys(content, path)
    if keys is None:
        return _by_text(lines, line, heading, places)
    at = set(places)
    named = [key for key in keys if key.line in at or ".".join(key.path) == heading.strip()]
    found = _changed_section(content, keys, hunk, line, path)
    if found is None or not named:
        return None
    section, above = found
    if any(_may_be_below(key, section, above, line, lines) for key in named):
        return None
    first = next((key.line for key in keys if key.path == section), line)
    stated = describe_heading(heading, list(dict.fromkeys(key.line for key in named)))
    return f"It fits at line {line}, in {'.'.join(section)} (line {first}); {stated}."


def moved_to_other_section(content: bytes, hunk: Hunk, offset: int, path: str) -> str | None:
    """Return why a moved hunk may be in the wrong section, with a twin nearer to its line; or None.

    A twin has one of the keys that the hunk has in its own section.
    """
    keys = read_keys(content, path)
    line = hunk.old_index + 1 + offset
    found = _changed_section(content, keys, hunk, line, path) if keys else None
    if not keys or found is None:
        return None
    section, _ = found
    last = line + hunk.old_count
    names = {key.path[-1] for key in keys if line <= key.line < last and key.path[:-1] == section}
    if not names:  # a line of a value
        section, names = section[:-1], {section[-1]}
    sections = {key.path[:-1] for key in keys if key.path[-1] in names} - {()}
    spans = _spans(keys, sections)
    stated = hunk.old_index + 1 + next(hunk.changes()).at

    def distance(of: Names) -> int:
        start, end = spans[of]
        return max(start - stated, stated - end, 0)

    if section not in spans:
        return None
    nearest = min(spans, key=distance)
    if distance(nearest) == distance(section):
        return None
    return (
        f"It fits at line {line} only, in {'.'.join(section)} (line {spans[section][0]}); "
        f"its line {hunk.old_index + 1} is nearer to {'.'.join(nearest)} (line {spans[nearest][0]})."
    )


def _places(heading: str, lines: Sequence[str]) -> list[int]:
    """Return the numbers of the lines that match a heading: by indentation and text, by text, or at least by key."""
    wanted = heading.strip()
    places = [number for number, text in enumerate(lines, 1) if text.strip() == wanted]
    if not places and len(wanted) >= SHORTEST_CUT:
        places = [number for number, text in enumerate(lines, 1) if text.strip().startswith(wanted)]
    if not places and (name := _name(heading)) is not None:
        places = [number for number, text in enumerate(lines, 1) if _name(text) == name]
    return [n for n in places if indent(lines[n - 1]) == indent(heading)] or places


def _name(text: str) -> str | None:
    found = _NAME.match(text)
    return found["name"].strip().strip("\"'") if found else None


def _changed_section(
    content: bytes, keys: Sequence[KeyPlace], hunk: Hunk, line: int, path: str
) -> tuple[Names, list[KeyPlace]] | None:
    """Return the section of a hunk's first change, and the keys above it, the nearest last.

    None for the outermost one, whose keys have no twins. The section of an added line is that in the changed file.
    """
    change = next(hunk.changes())
    if not change.removed:
        lines = split_lines(content)
        lines[line - 1 : line - 1 + hunk.old_count] = hunk.new_lines
        keys = read_keys(b"".join(lines), path) or keys
    changed = change.removed or change.added
    at = line + change.at + next((n for n, text in enumerate(changed) if text.strip()), 0)
    above = [key for key in keys if key.line <= at]
    if not above:
        return None
    own = next(key for key in above if key.line == above[-1].line)  # the first of its line
    section = own.path[:-1] if own.line == at else above[-1].path
    return (section, above) if section else None


def _may_be_below(
    named: KeyPlace, section: Names, above: Sequence[KeyPlace], line: int, lines: Sequence[str]
) -> bool:
    """Return whether a hunk from `line` on may change a section below the heading of a key.

    It may if both are in one section, if the hunk itself shows where the other section begins, or if a heading of git's
    can't: `[critic]` does not begin with a letter, so the hunk of its first keys has the last key before it.
    """
    common = zip(named.path, section, strict=False)
    depth = next((n for n, (one, other) in enumerate(common, 1) if one != other), None)
    if depth is None:
        return True
    begins = line
    for key in reversed(above):
        if key.path[:depth] != section[:depth]:
            break
        if named.opens or not lines[key.line - 1].startswith("["):
            begins = key.line
    return begins >= line or (depth == len(named.path) and not named.opens)


def _spans(keys: Sequence[KeyPlace], sections: set[Names]) -> dict[Names, tuple[int, int]]:
    """Return the first and last line of sections."""
    spans: dict[Names, tuple[int, int]] = {}
    for key in keys:
        for depth in range(1, len(key.path) + 1):
            of = key.path[:depth]
            if of in sections:
                spans[of] = (spans.get(of, (key.line, 0))[0], key.line)
    return spans


def _by_text(lines: Sequence[str], line: int, heading: str, places: Sequence[int]) -> str | None:
    """Return why the opening line above a hunk is not the one of its heading; None without evidence."""
    if not places or not _OPENING.fullmatch(heading):
        return None
    level = indent(lines[places[0] - 1])
    here = last_match(lambda text: indent(text) == level and _OPENING.fullmatch(text), lines, line)
    if here is None or here in places:
        return None
    return (
        f"It fits at line {line}, below `{lines[here - 1].strip()}` (line {here}); "
        f"{describe_heading(heading, places)}. The file can't be parsed: only lines were compared."
    )


def describe_heading(heading: str, places: Sequence[int]) -> str:
    """Describe a heading, with the numbers of the lines that match it."""
    more = f" and {len(places) - 5} more" if len(places) > 5 else ""
    return f"its heading is `{heading.strip()}` (line {', '.join(map(str, places[:5]))}{more})"


def last_match(matches: Callable[[str], object], lines: Sequence[str], before: int) -> int | None:
    """Return the number of the last line above `before` that matches, as git finds a heading."""
    return next((n for n in range(min(before - 1, len(lines)), 0, -1) if matches(lines[n - 1])), None)


def indent(text: str) -> str:
    """Return the leading blanks of a line."""
    return text[: len(text) - len(text.lstrip())]
