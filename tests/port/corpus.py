"""Hunks of real history, each with what a person says became of it: `corpus/*.yaml`.

The answers were written by hand from the upstream code, before any tool had judged a hunk. Where a tool and an answer
differ, the tool is examined first; an answer is only corrected with its evidence in the commit message.

An entry has ids and paths only; the code comes from the upstreams. `patch` is a file of somebody's repository, or a
commit of the component itself, limited to `paths`. It fits `from` exactly and is ported to `to`. Hunks are numbered
from 1 over the whole patch. `trivial` is whether a person would carry the hunk over without thinking, `commit` the one
that brought the new lines or took the target away, `place` the file where a person would go on.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_model import Hunk

FOLDER = Path(__file__).with_name("corpus")
NEEDS_PERSON = ("conflict", "target gone")
ANSWERS = ("exact", "moved", "merged", "already upstream", *NEEDS_PERSON)


@dataclass(frozen=True)
class CorpusHunk:
    """A hunk, its file at both versions, and a person's answer. new: None if the new version has no such file."""

    where: str
    path: str
    hunk: Hunk
    old: bytes
    new: bytes | None
    answer: str


def read_corpus() -> list[dict[str, Any]]:
    """Read every entry."""
    return [entry for file in sorted(FOLDER.glob("*.yaml")) for entry in yaml.safe_load(file.read_text())]


def corpus_hunks(upstreams: Path) -> Iterator[CorpusHunk]:
    """Yield the hunks whose repositories are among the mirrors."""
    for entry in read_corpus():
        patch, own = entry["patch"], _mirror(upstreams, entry["repository"])
        of = _mirror(upstreams, patch["repository"]) if "path" in patch else own
        if not (own.is_dir() and of.is_dir()):
            continue
        if "path" in patch:
            text = _git(of, "show", f"{patch['commit']}:{patch['path']}")
        else:
            options = ("--no-renames", "--full-index", "--no-ext-diff")
            text = _git(of, "diff", *options, f"{patch['commit']}^", patch["commit"], "--", *patch["paths"])
        parsed = parse_patch(text or b"", name="patch", strip=patch.get("strip", 1))
        hunks = {hunk.number: hunk for hunk in parsed.hunks}
        for answer in entry["hunks"]:
            path = answer["path"]
            old, new = (_git(own, "show", f"{entry[side]}:{path}") for side in ("from", "to"))
            where = f"{entry['repository']} {path}, hunk {answer['hunk']} to {entry['to_name']}"
            yield CorpusHunk(where, path, hunks[answer["hunk"]], old or b"", new, answer["answer"])


def _mirror(upstreams: Path, url: str) -> Path:
    owner_and_name = url.removesuffix(".git").split("/")[-2:]
    return upstreams / "+".join(owner_and_name) / "repo"


def _git(repository: Path, *words: str) -> bytes | None:
    done = subprocess.run(["git", "--git-dir", repository, *words], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None
