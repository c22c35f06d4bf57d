"""A seeded mutator: honest inputs in, hostile ones out. The same seed gives the same bytes on every machine.

It knows two kinds of input: bytes, and trees of JSON values, which it breaks in their shape: other types, deep
nesting, huge numbers, NULs, half surrogate pairs, keys that are there twice.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

NASTY_TEXTS = (
    "", " ", "\0", "a\0b", "\ud800", "\udcff", "\x1b]0;x\x07", "\u202e", "\n", "a\nb", "..", ".", "/", "/etc/passwd",
    "../../x", "~nosuchuser/x", "-x", "--upload-pack=x", "$(x)", "`x`", "${x:", "%s%n", "{}", "nan", "-1", "1e999",
    "9" * 5000, "0x", "x" * 300, "x" * 70_000, "a/" * 1500 + "a", ".git", "ä" * 200, "https://u:p@h/x", "file:///x",
    "ext::sh", "refs/heads/", "0" * 40, "null", "true", "2001-13-45", "!!python/object:os.system", "&a [*a]", "*a",
)  # fmt: skip
NASTY_BYTES = (
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\n\n", b"\x1b[31m", b"\xc3", b"\xed\xa0\x80", b"-- \n",
    b"diff --git a/x b/x\n", b"--- a/../x\n+++ b/../x\n", b"@@ -1,9999999999 +1 @@\n", b"@@ -0,0 +0,0 @@\n",
    b"rename from x\nrename to ../y\n", b"GIT binary patch\n", b"old mode 100644\nnew mode 120000\n",
    b"- ", b": ", b"[" * 500, b"{" * 500, b"!!", b"&a ", b"*a", b"<<: *a\n", b"? ", b"%YAML 9.9\n---\n", b"\t",
    b"\"\\ud800\"", b"9" * 5000, b"1e999", b"<a ", b"<!--", b"&#x110000;", b"'", b'"', b"gitdir: /x\n",
)  # fmt: skip


class Mutator:
    """All randomness of one case."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)

    def bytes(self, data: bytes) -> bytes:
        """The data with one to four changes somewhere."""
        for _ in range(self.random.choice((1, 1, 2, 4))):
            data = self._change_bytes(data)
        return data

    def _change_bytes(self, data: bytes) -> bytes:
        pick = self.random
        at, end = sorted((pick.randrange(len(data) + 1), pick.randrange(len(data) + 1)))
        end = min(end, at + pick.choice((1, 8, 200, 100_000)))
        piece = data[at:end]
        kind = pick.randrange(8)
        if kind == 0:
            return data[:at]
        if kind == 1:
            return data[:at] + data[end:]
        if kind == 2:
            return data[:at] + piece * pick.choice((2, 3, 50)) + data[end:]
        if kind == 3:
            return data[:at] + pick.choice(NASTY_BYTES) + data[at:]
        if kind == 4:
            return data[:at] + pick.choice(NASTY_BYTES) + data[end:]
        if kind == 5 and data:
            at = pick.randrange(len(data))
            return data[:at] + bytes([data[at] ^ (1 << pick.randrange(8))]) + data[at + 1 :]
        if kind == 6:
            lines = data.split(b"\n")
            pick.shuffle(lines)
            return b"\n".join(lines)
        other = pick.randrange(len(data) + 1)
        return data[:other] + piece + data[other:]

    def value(self, tree: Any) -> Any:
        """A copy of a tree of JSON values with one to three changes somewhere."""
        holder = [copy.deepcopy(tree)]
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            self._change_value(holder)
        return holder[0]

    def _change_value(self, holder: list[Any]) -> None:
        pick = self.random
        places = list(_places(holder))
        inside, key = pick.choice(places)
        kind = pick.randrange(10)
        if kind < 5:
            inside[key] = self.nasty()
        elif kind == 5 and inside is not holder:
            del inside[key]
        elif kind == 6 and isinstance(inside, dict):
            inside[pick.choice(NASTY_TEXTS)] = inside[key]
        elif kind == 7 and isinstance(inside, list):
            inside[key:key] = [copy.deepcopy(inside[key])] * pick.choice((1, 2, 300))
        elif kind == 8:
            other, name = pick.choice(places)
            inside[key] = copy.deepcopy(other[name])
        else:
            inside[key] = [inside[key]] if pick.random() < 0.5 else {"x": inside[key]}

    def nasty(self) -> Any:
        """A value that is hardly what was expected."""
        pick = self.random
        return pick.choice(
            (
                None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**30, 0.5, -0.0, 1e308,
                float("nan"), float("inf"),
                [], {}, [[]], [{}], [None], {"": None}, {"a": {"a": {}}}, [1] * 1000,
                *(pick.choice(NASTY_TEXTS) for _ in range(20)),
            )
        )  # fmt: skip

    def text(self, tree: Any) -> str:
        """JSON text of the tree: mostly as it is, now and then deep, or with its keys twice."""
        text = json.dumps(tree, ensure_ascii=self.random.random() < 0.5)
        kind = self.random.randrange(20)
        if kind == 0:
            depth = self.random.choice((50, 900, 100_000))
            return text[:-1] + ', "deep": ' + "[" * depth + "]" * depth + "}"
        if kind == 1 and text.startswith("{") and len(text) > 2:
            return "{" + text[1:-1] + ", " + text[1:-1] + "}"
        return text

    def json(self, tree: Any) -> bytes:
        """JSON of a copy of the tree with some changes."""
        return self.text(self.value(tree)).encode("utf-8", "surrogatepass")


class Unchanged(Mutator):
    """The honest input: what shows that a kind reaches the readers that it is for."""

    def bytes(self, data: bytes) -> bytes:
        return data

    def value(self, tree: Any) -> Any:
        return copy.deepcopy(tree)

    def text(self, tree: Any) -> str:
        return json.dumps(tree)


def _places(holder: Any) -> Any:
    """Every (container, key) below a list or mapping."""
    pending = [holder]
    while pending:
        inside = pending.pop()
        keys = list(inside) if isinstance(inside, dict) else range(len(inside))
        for key in keys:
            yield inside, key
            if isinstance(inside[key], dict | list):
                pending.append(inside[key])
