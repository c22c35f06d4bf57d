"""Served copies of the upstreams, packed as a forge would have them, and the code tree to expect.

Everything lies under the lab folder and is reused: `served/NAME.git` with one pack, a bitmap and a
commit-graph, `expected.git` with the tree the contenders must end with, `floor.tar` of that tree.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.errors import HostError

from .pins import UPSTREAMS, Upstream

VARIABLE = "NPU_RL_UPSTREAMS"
_FORMAT = 1  # raise it when the way the copies are made changes
_NEUTRAL = ("-c", "core.autocrlf=false", "-c", "core.eol=lf", "-c", "core.attributesFile=/dev/null")


@dataclass(frozen=True)
class Expected:
    """The tree the peers assemble: its id, its files and bytes, a tar of it and a folder with it."""

    tree: str
    files: int
    size: int
    tar: Path
    code: Path


def clean_environment(home: Path) -> dict[str, str]:
    """The same surroundings for every contender: no user configuration, no questions, one identity."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "NPU_RL_", "PYTHON"))}
    home.mkdir(parents=True, exist_ok=True)
    return kept | {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "benchmark",
        "GIT_AUTHOR_EMAIL": "benchmark@localhost",
        "GIT_COMMITTER_NAME": "benchmark",
        "GIT_COMMITTER_EMAIL": "benchmark@localhost",
        "GIT_AUTHOR_DATE": "2025-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2025-01-01T00:00:00Z",
    }


def git(*arguments: str | Path, text: str = "", env: dict[str, str] | None = None) -> str:
    """The output of one git command. Raises HostError with git's words when it fails."""
    command = ["git", *map(str, arguments)]
    done = subprocess.run(command, input=text, env=env, capture_output=True, text=True)
    if done.returncode:
        raise HostError(
            "git failed while the lab was prepared", where=" ".join(command), why=done.stderr.strip()
        )
    return done.stdout


def snapshots() -> Path:
    """The folder of bare upstreams. Raises HostError where it is not named or not complete."""
    named = os.environ.get(VARIABLE)
    hint = f"Set {VARIABLE} to a folder that has OWNER+NAME/repo, a bare repository, for each upstream."
    if not named:
        raise HostError("The benchmark has no upstreams to serve", why=f"{VARIABLE} is not set", hint=hint)
    root = Path(named).absolute()
    absent = [u.snapshot for u in UPSTREAMS if not (root / u.snapshot / "repo" / "objects").is_dir()]
    if absent:
        raise HostError("Upstreams are missing", where=str(root), why=", ".join(absent), hint=hint)
    return root


class Copies:
    """The lab's repositories. `prepare` makes whatever is not there yet."""

    def __init__(self, lab: Path) -> None:
        self.lab = lab
        self.served = lab / "served"
        self.placeholders = lab / "placeholders"

    def prepare(self) -> Expected:
        """Make or reuse the served copies. Raises HostError."""
        root = snapshots()
        self.placeholders.mkdir(parents=True, exist_ok=True)
        for upstream in UPSTREAMS:
            self._copy(upstream, root / upstream.snapshot / "repo")
        return self._expect()

    def repository(self, upstream: Upstream) -> Path:
        return self.served / f"{upstream.name}.git"

    def _copy(self, upstream: Upstream, source: Path) -> None:
        target = self.repository(upstream)
        marker = target / "made-from.json"
        state = {"format": _FORMAT, "packs": sorted(p.name for p in source.glob("objects/pack/*.pack"))}
        if marker.is_file() and json.loads(marker.read_text()) == state:
            return
        if target.exists():
            shutil.rmtree(target)
        git("init", "-q", "--bare", "--template=", target)
        for name in ("HEAD", "packed-refs"):
            shutil.copyfile(source / name, target / name)
        # Links without the .promisor files: what a snapshot lacks has to show up as missing.
        for pack in source.glob("objects/pack/*"):
            if pack.suffix in (".pack", ".idx"):
                (target / "objects" / "pack" / pack.name).symlink_to(pack)
        for tag, commit in upstream.tags.items():
            git("-C", target, "update-ref", f"refs/tags/{tag}", commit)
        lost = re.findall(r"^\?([0-9a-f]{40})", _all_objects(target), flags=re.MULTILINE)
        self._fill_in(lost)
        borrowed = target / "objects" / "info" / "alternates"
        borrowed.parent.mkdir(exist_ok=True)
        borrowed.write_text(f"{self.placeholders}\n")
        git("-C", target, "repack", "-adq", "--write-bitmap-index")
        borrowed.unlink()
        git("-C", target, "commit-graph", "write", "--reachable", "--no-progress")
        for key in ("allowFilter", "allowAnySHA1InWant"):
            git("-C", target, "config", f"uploadpack.{key}", "true")
        for commit in (upstream.pin, upstream.result):
            git("-C", target, "cat-file", "-e", f"{commit}:{upstream.package}")
        marker.write_text(json.dumps(state))

    def _fill_in(self, lost: list[str]) -> None:
        """Placeholder blobs under the lost names. A pack needs them to be whole; no pin reaches one."""
        for name in lost:
            body = f"placeholder {name}".encode()
            path = self.placeholders / name[:2] / name[2:]
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(zlib.compress(b"blob %d\0" % len(body) + body))

    def _expect(self) -> Expected:
        store, code, tar = (self.lab / name for name in ("expected.git", "expected", "floor.tar"))
        if not (store / "HEAD").is_file():
            git("init", "-q", "--bare", "--template=", store)
        borrowed = store / "objects" / "info" / "alternates"
        borrowed.parent.mkdir(exist_ok=True)
        borrowed.write_text("".join(f"{self.repository(u).absolute()}/objects\n" for u in UPSTREAMS))
        tree = git("-C", store, "mktree", text="".join(self._entries())).strip()
        listing = git("-C", store, "ls-tree", "-r", "-l", tree).splitlines()
        if not (tar.is_file() and (store / f"made-{tree}").is_file()):
            if code.exists():
                shutil.rmtree(code)
            code.mkdir()
            (store / "index").unlink(missing_ok=True)
            flags = (*_NEUTRAL, "-c", "core.bare=false", "--git-dir", store, "--work-tree", code)
            git(*flags, "read-tree", "-u", "--reset", tree)
            subprocess.run(["tar", "-cf", str(tar), "-C", str(code), "."], check=True)
            (store / f"made-{tree}").touch()
        return Expected(tree, len(listing), sum(int(line.split()[3]) for line in listing), tar, code)

    def _entries(self) -> Iterator[str]:
        for upstream in UPSTREAMS:
            repository = self.repository(upstream)
            named = f"{upstream.result}:{upstream.package}"
            if upstream.spread:
                yield from git("-C", repository, "ls-tree", named).splitlines(keepends=True)
            else:
                tree = git("-C", repository, "rev-parse", named).strip()
                yield f"040000 tree {tree}\t{upstream.package}\n"

    def pack_size(self, *, package_only: bool) -> int:
        """Bytes of packs that hold just the needed objects: the packages, or the whole trees."""
        total = 0
        for upstream in UPSTREAMS:
            repository = self.repository(upstream)
            root = f"{upstream.result}:{upstream.package}" if package_only else f"{upstream.result}^{{tree}}"
            objects = git("-C", repository, "rev-list", "--objects", "--no-object-names", root)
            command = ["git", "-C", str(repository), "pack-objects", "--stdout", "-q", "--delta-base-offset"]
            total += len(
                subprocess.run(command, input=objects.encode(), stdout=subprocess.PIPE, check=True).stdout
            )
        return total


def _all_objects(repository: Path) -> str:
    return git("-C", repository, "rev-list", "--objects", "--all", "--missing=print", "--no-object-names")
