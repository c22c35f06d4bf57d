"""A bundle's own facts (`bundle.json`), its list of hashes, and its id.

The id is a SHA-256 over a bundle's content, not over how it is packed. A unit of the store counts by its key, which is
computed from the ids of the requested git objects: two versions of git pack them differently, but the id is the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from npu_rl.common.bounded import parse_json
from npu_rl.stack.bundles.bundle_names import (
    FACTS,
    LIST,
    SIGNATURE,
    UNITS,
    is_member_name,
    kind_of,
    unit_key_of,
)

BUNDLE_FORMAT = 1
_SHA256 = re.compile("[0-9a-f]{64}")
_LINE = re.compile("([0-9a-f]{64})  ([!-~]+)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_PYTHON = re.compile(r"3\.[0-9]{1,2}")
_MACHINE = re.compile(r"[a-z0-9_]{1,20}")


@dataclass(frozen=True)
class BundledStack:
    """One manifest of a bundle.

    Attributes:
        name: The manifest's name.
        path: The member with the manifest's file; its lock is the member beside it.
        lock: Digest of its lock.
        shipped: Whether the npu-rl in the bundle ships this manifest.
    """

    name: str
    path: str
    lock: str
    shipped: bool


@dataclass(frozen=True)
class BundledHost:
    """A host for the packages in a bundle."""

    python: str
    machine: str


@dataclass(frozen=True)
class BundleFacts:
    """The content of `bundle.json`.

    Attributes:
        npu_rl: The version of npu-rl that made the bundle, and is in it.
        sizes: Size in bytes of each member except the list, its signature and `bundle.json`.
    """

    id: str
    npu_rl: str
    stacks: tuple[BundledStack, ...]
    hosts: tuple[BundledHost, ...]
    sizes: Mapping[str, int]

    def dump(self) -> bytes:
        """Return the text of `bundle.json`; equal facts give equal text."""
        body = {"bundle_format": BUNDLE_FORMAT, **asdict(self), "sizes": dict(sorted(self.sizes.items()))}
        return (json.dumps(body, indent=1, ensure_ascii=True) + "\n").encode()


def content_id(hashes: Mapping[str, str]) -> str:
    """Return the id of a bundle with these members (name -> SHA-256); the list and the facts don't count."""
    parts = set()
    for name, sha256 in hashes.items():
        if name in (LIST, SIGNATURE, FACTS):
            continue
        kind = kind_of(name)
        content = unit_key_of(name) if kind == UNITS else sha256
        parts.add((kind, content if kind == UNITS else name.partition("/")[2], content))
    text = "".join(f"{kind}\0{name}\0{content}\n" for kind, name, content in sorted(parts))
    return hashlib.sha256(f"npu-rl bundle {BUNDLE_FORMAT}\n{text}".encode()).hexdigest()


def dump_list(hashes: Mapping[str, str]) -> bytes:
    """Return the list of hashes, as `sha256sum` writes and checks it."""
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(hashes.items())).encode()


def parse_list(data: bytes) -> dict[str, str]:
    """Parse a list of hashes into name -> SHA-256. Raises ValueError for a text that `dump_list` would not write."""
    found: dict[str, str] = {}
    for line in data.decode("ascii").splitlines():
        match = _LINE.fullmatch(line)
        if match is None or not is_member_name(match[2]) or match[2] in (LIST, SIGNATURE):
            raise ValueError(f"{line[:300]!a} is not a line of it")
        found[match[2]] = match[1]
    if dump_list(found) != data:
        raise ValueError("it is not sorted, or names a member twice")
    return found


def parse_facts(data: bytes) -> BundleFacts:
    """Parse the text of `bundle.json`. Raises ValueError."""
    body = parse_json(data)
    if not isinstance(body, dict):
        raise ValueError("it is not a JSON object")
    if body.get("bundle_format") != BUNDLE_FORMAT:
        raise ValueError(
            f"it has format {body.get('bundle_format')!a:.20}, and this npu-rl reads {BUNDLE_FORMAT}"
        )
    try:
        return BundleFacts(
            id=_text(body["id"], _SHA256),
            npu_rl=_text(body["npu_rl"], _NAME),
            stacks=tuple(map(_stack, _list(body["stacks"]))),
            hosts=tuple(map(_host, _list(body["hosts"]))),
            sizes={_member(name): _size(size) for name, size in body["sizes"].items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a value is missing or of another type ({error})"[:300]) from None


def _stack(value: Any) -> BundledStack:
    shipped = value["shipped"]
    if not isinstance(shipped, bool):
        raise TypeError("shipped")
    return BundledStack(
        _text(value["name"], _NAME), _member(value["path"]), _text(value["lock"], _SHA256), shipped
    )


def _host(value: Any) -> BundledHost:
    return BundledHost(_text(value["python"], _PYTHON), _text(value["machine"], _MACHINE))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("a list")
    return value


def _text(value: Any, form: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise ValueError(f"{value!a:.100} is not a value that it has")
    return value


def _member(value: Any) -> str:
    if not isinstance(value, str) or not is_member_name(value):
        raise ValueError(f"{value!a:.300} is not the name of a member")
    return value


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!a:.100} is not a size")
    return value
