r"""Parse a response: its answer, which is the last balanced `\boxed{}`, and the format that the prompt demands.

Both functions read the text once, from left to right: a megabyte of braces takes no longer than a megabyte of prose.
"""

from __future__ import annotations

import re

# A backslash takes the next character with it, so that `\{` is not a brace of TeX's and `\\{` is one.
_TOKEN = re.compile(r"\\boxed(?![A-Za-z])|\\.|[{}]", re.DOTALL)
_SPACES = re.compile(r"\s*")


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` with balanced braces; None without one.

    Braces nest to any depth. The last box is the one that begins last, so a box inside another counts as later.
    """
    opened: list[int] = []  # for each open brace: where its box's content begins, or -1
    start, end = -1, -1
    box = -1  # where the content of a `\boxed{` begins whose brace comes next
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word == "{":
            opened.append(box if box == token.end() else -1)
        elif word == "}":
            began = opened.pop() if opened else -1
            if began > start:
                start, end = began, token.start()
        elif word == r"\boxed":
            spaces = _SPACES.match(text, token.end())
            box = (spaces.end() if spaces else token.end()) + 1
    return None if start < 0 else text[start:end]


def keeps_format(text: str) -> bool:
    r"""Return whether the stripped text is `<think>...</think>...<answer>...\boxed{...}...</answer>`.

    The result is that of a full match of the recipe's regular expression, without its backtracking
    (recipe/r1_ascend/deepscaler.py of verl 448c6c3).
    """
    text = text.strip()
    if not (text.startswith("<think>") and text.endswith("</answer>")):
        return False
    end = len(text) - len("</answer>")
    at = len("<think>")
    for part in ("</think>", "<answer>", r"\boxed{", "}"):
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
