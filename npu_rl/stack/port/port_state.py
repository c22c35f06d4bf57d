"""What a port is, recorded in the `.git` of its repository with the old patches."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from npu_rl.common.bounded import parse_json, read_if_file
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import PatchError

_LARGEST = 256 << 20


@dataclass(frozen=True)
class PortState:
    """What a port is.

    Attributes:
        manifest: The path of a user's manifest; None for a bundled one.
        ref: The value of a manifest's `ref:` for the new version.
        version: The name of its patchset.
        output: The folder of the new patchset; None for the usual one.
        moved: Files that the manifest takes or patches change and the new version lacks, with files that may be them.
        series: The text of the old `series`.
        headers: Those of the patches by name; bytes that are not UTF-8 are surrogates.
    """

    component: str
    manifest: str | None
    ref: str
    version: str
    output: str | None
    moved: dict[str, list[str]]
    series: str
    headers: dict[str, str]


def state_file(git_dir: Path) -> Path:
    """Return the path of the record."""
    return git_dir / "npu-rl-port.json"


def write_state(git_dir: Path, state: PortState) -> None:
    """Record a port."""
    with disk_errors(git_dir):
        state_file(git_dir).write_text(json.dumps(asdict(state)), encoding="ascii")


def read_state(git_dir: Path) -> PortState | None:
    """Return what a port is; None if there is none. Raises PatchError."""
    data = read_if_file(state_file(git_dir), _LARGEST)
    try:
        return None if data is None else PortState(**parse_json(data))
    except (ValueError, TypeError) as error:
        where = str(state_file(git_dir))
        raise PatchError("The record of the port is damaged", where=where, why=str(error)) from error
