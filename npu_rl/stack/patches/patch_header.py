"""The header of a patch: its reason, how it works, its tests, and when it can be removed.

    Subject: Keep the KV cache configuration of the first start

    Why: a second start profiles again and finds another number of blocks,
      so the scheduler's pool and the cache no longer agree.
    How: keep the list on the engine, and use it again.
    Upstream-Status: submitted https://github.com/vllm-project/vllm/pull/1
    Verified-By: patchsets/witnesses/kv-cache-resized.py
    Needs-NPU: that nothing is overwritten under load
    Retire-When: vllm >= 0.10.2

A value continues on indented lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

WHY = "Why"
HOW = "How"
STATUS = "Upstream-Status"
VERIFIED_BY = "Verified-By"
NEEDS_NPU = "Needs-NPU"
RETIRE_WHEN = "Retire-When"
FIELDS = (WHY, HOW, STATUS, VERIFIED_BY, NEEDS_NPU, RETIRE_WHEN)

_FIELD = re.compile(r"([A-Za-z][A-Za-z-]*):(?:[ \t]+(.*))?$")
_STATUS = re.compile(
    r"(?P<state>pending|submitted https?://\S+|merged-in \S+|inappropriate)(?P<note>\s*[\[(:].*)?", re.S
)
_TEST = re.compile(r"tests/[\w./-]+\.py(?:::\w+)+(?:\[[^\]]*\])?|patchsets/witnesses/[\w.-]+\.py")
_SWITCH = re.compile(r"\bNPU_RL_([A-Z0-9]+(?:_[A-Z0-9]+)*)=[01]")
_PROGRAM = re.compile(
    r"(?:python[\d.]*|pytest|bash|sh|env|make|tox|nox|uv|torchrun|true|[\w.~-]*/[\w./-]*(?<!\.py))$"
)
_OR = {False: "", True: ", nor a command that begins with a path or a program like python"}
_MBOX = re.compile(r"From [0-9a-f]{7,64} ")


@dataclass(frozen=True)
class Header:
    """A parsed header.

    Attributes:
        subject: The subject without `[PATCH 1/2]`.
        fields: The known fields by name; values have no line breaks at their ends.
        repeated: Names that occur twice.
        lines: The line of each field, from 1; the last line of a repeated one.
    """

    subject: str
    fields: Mapping[str, str]
    repeated: tuple[str, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)

    @property
    def switches(self) -> tuple[str, ...]:
        """The adaptations whose switch the header names: `NPU_RL_KV_CACHE_REUSE=0` is "kv-cache-reuse"."""
        found = _SWITCH.finditer("\n".join(self.fields.values()))
        return tuple(dict.fromkeys(match[1].lower().replace("_", "-") for match in found))

    @property
    def tests(self) -> tuple[str, ...]:
        """The witnesses and test ids of Verified-By."""
        return tuple(t for t in re.split(r"[\s,]+", self.fields.get(VERIFIED_BY, "")) if t)


class HeaderFault(NamedTuple):
    """One fault, and its line from 1; a missing field is reported at line 1."""

    line: int
    message: str


def parse_header(text: str) -> Header:
    """Parse the text above the first diff, of `git format-patch` or written by hand. Never raises."""
    lines = _message(text)
    subject = _subject(lines)
    fields: dict[str, str] = {}
    repeated: list[str] = []
    numbers: dict[str, int] = {}
    for name, value, number in _fields(lines):
        if name not in FIELDS:
            continue
        if name in fields:
            repeated.append(name)
        fields.setdefault(name, value)
        numbers[name] = number
    return Header(subject, fields, tuple(repeated), numbers)


def is_test_id(text: str) -> bool:
    """Return whether a text is a witness, patchsets/witnesses/ID.py, or the id of a test, tests/x.py::test."""
    return _TEST.fullmatch(text) is not None


def is_command(value: str) -> bool:
    """Return whether a value of Verified-By begins with a program, and not with the id of a test."""
    words = value.split()
    return bool(words) and _PROGRAM.match(words[0]) is not None


def lint_header(text: str, *, commands: bool = False) -> list[HeaderFault]:
    """Return the faults in a patch header, by line; each message is a sentence.

    Args:
        text: The text above the first diff.
        commands: Whether Verified-By may have a command instead of tests.
    """
    header = parse_header(text)
    faults = [] if header.subject else ["The subject is missing: begin with `Subject: ` and one sentence."]
    faults += [f"`{name}:` is missing or empty." for name in FIELDS if not header.fields.get(name)]
    found = [HeaderFault(1, message) for message in faults]
    found += [HeaderFault(header.lines[name], f"`{name}:` is there twice.") for name in header.repeated]
    status = header.fields.get(STATUS)
    if status and not _STATUS.fullmatch(status):
        message = (
            f"`{STATUS}: {status}` is invalid; write pending, submitted URL, merged-in VERSION, "
            "or inappropriate [reason]."
        )
        found.append(HeaderFault(header.lines[STATUS], message))
    found += [
        HeaderFault(
            header.lines[VERIFIED_BY],
            f"`{VERIFIED_BY}: {test}` is not a witness like patchsets/witnesses/x.py "
            f"or a test id like tests/test_x.py::test_name{_OR[commands]}.",
        )
        for test in _not_tests(header, commands=commands)
    ]
    return sorted(found, key=lambda fault: fault.line)


def _not_tests(header: Header, *, commands: bool) -> list[str]:
    """Return the words of Verified-By that are not test ids; the whole value, once, if none is."""
    value = header.fields.get(VERIFIED_BY, "")
    wrong = [test for test in header.tests if not is_test_id(test)]
    if commands and is_command(value):
        return []
    return [" ".join(value.split())] if wrong and len(wrong) == len(header.tests) else wrong


def _message(text: str) -> list[str]:
    """Return the lines up to `---`, below which mail has a diffstat."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[: lines.index("---")] if "---" in lines else lines


def _subject(lines: list[str]) -> str:
    for number, line in enumerate(lines):
        if line.startswith("Subject:"):
            words = [line[len("Subject:") :].strip()]
            for more in lines[number + 1 :]:
                if not more[:1].isspace() or not more.strip():
                    break
                words.append(more.strip())
            return re.sub(r"^\[[^\]]*PATCH[^\]]*\]\s*", "", _decode(" ".join(words)))
    first = next((line for line in lines if line.strip() and not _MBOX.match(line)), "")
    return "" if _FIELD.match(first) else first.strip()


def _decode(subject: str) -> str:
    """Decode `=?UTF-8?q?...?=`, which mail writes for non-ASCII text."""
    if "=?" not in subject:
        return subject
    from email.errors import HeaderParseError
    from email.header import decode_header, make_header

    try:
        return str(make_header(decode_header(subject)))
    except (HeaderParseError, LookupError, UnicodeDecodeError):
        return subject


def _fields(lines: list[str]) -> Iterator[tuple[str, str, int]]:
    """Yield name, value and line of each field."""
    name: str | None = None
    value: list[str] = []
    start = 0
    for number, line in enumerate([*lines, "end:"], 1):
        if name is not None and (line[:1].isspace() or not line):
            value.append(line.strip())
            continue
        found = _FIELD.match(line)
        if name is not None:
            yield name, "\n".join(value).strip(), start
        name, value, start = (found[1], [found[2] or ""], number) if found else (None, [], 0)
