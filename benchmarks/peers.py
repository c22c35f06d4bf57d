"""The contenders that are not npu-rl: what each runs, and what each leaves out.

Each is a bash script, the same a person would write with that tool. They get `$URL` (where the copies
are served), `$WS` (an empty workspace folder), `$CACHE` (a folder for what they share between
workspaces) and `$FLOOR` (the tar). The code tree ends up in `$WS/code`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.errors import HostError

from .measure import Command
from .pins import UPSTREAMS, Upstream

REQUIREMENTS = Path(__file__).with_name("peers.txt")
TOOLS = ("west", "gitaggregate", "vcs")

_MERGED = tuple(u for u in UPSTREAMS if u.pulls)
_NO_PROOF = "no proof of content"
_DRIFT = "verl moves by 537 commits (the merge is a fast-forward) without a word"


@dataclass(frozen=True)
class Contender:
    """A way to a code tree.

    key: what stands in tables and on the command line. title: in words.
    command: the command for one (url, workspace, cache).
    leaves_out: what npu-rl does in the same breath and this does not.
    peer: counts for "best peer"; the floor and the bare comparisons don't.
    """

    key: str
    title: str
    command: Callable[[str, Path, Path], Command]
    leaves_out: tuple[str, ...] = ()
    peer: bool = True


def assemble() -> str:
    """The documented `cp -r` of the package folders."""
    folders = " ".join(f"{u.name}/{u.package}" for u in UPSTREAMS if not u.spread)
    spread = "".join(f"cp -r {u.name}/{u.package}/. code/\n" for u in UPSTREAMS if u.spread)
    return f"mkdir -p code\ncp -r {folders} code/\n{spread}"


def documented() -> str:
    """Full clones, checkout, merge, copy: the shell block of the recipe's README."""
    lines = []
    for upstream in UPSTREAMS:
        lines.append(f'git clone -q "$URL/{upstream.name}.git"')
        lines.append(f"git -C {upstream.name} checkout -q {upstream.documented}")
        for pull in upstream.pulls:
            lines.append(f"git -C {upstream.name} fetch -q origin pull/{pull.number}/head")
            lines.append(f"git -C {upstream.name} merge -q --no-edit FETCH_HEAD")
    return "\n".join(lines) + "\n" + assemble()


def west(options: str) -> str:
    """west for the pins. It can't merge; the heads are fast-forwards, so checking them out will do."""
    projects = "".join(
        f"    - {{name: {u.name}, repo-path: {u.name}.git, revision: {u.pin}}}\n" for u in UPSTREAMS
    )
    head = "manifest:\n  remotes: [{name: o, url-base: $URL}]\n  defaults: {remote: o}\n  projects:\n"
    write = f"mkdir m\ncat > m/west.yml <<X\n{head}{projects}X\nwest -q init -l m\n"
    return f"{write}west -q update --narrow -o=--depth=1 {options}\n{_heads('$URL/{name}.git')}{assemble()}"


def git_aggregator() -> str:
    """git-aggregator, the one peer that merges, with the smallest depth at which its merges work."""
    return f"cat > repos.yaml <<X\n{''.join(map(_aggregated, UPSTREAMS))}X\n{AGGREGATE}\n{assemble()}"


AGGREGATE = "gitaggregate -c repos.yaml -j 2 --log-level WARNING"
IMPORT = "vcs import --shallow -w 6 < w.repos"


def _aggregated(upstream: Upstream) -> str:
    merges = [upstream.pin, *(pull.ref for pull in upstream.pulls)]
    lines = [f"./{upstream.name}:", f"  defaults: {{depth: {upstream.depth}}}"]
    lines += [f"  remotes: {{origin: $URL/{upstream.name}.git}}", "  merges:"]
    return (
        "\n".join([*lines, *(f"    - origin {merge}" for merge in merges), "  target: origin result"]) + "\n"
    )


def vcstool2() -> str:
    """vcstool2 for the pins, in parallel and shallow; merges as for west."""
    rows = "".join(
        f"  {u.name}: {{type: git, url: $URL/{u.name}.git, version: {u.pin}}}\n" for u in UPSTREAMS
    )
    return f"cat > w.repos <<X\nrepositories:\n{rows}X\n{IMPORT}\n{_heads('origin')}{assemble()}"


def _heads(remote: str) -> str:
    lines = []
    for upstream in _MERGED:
        source = remote.format(name=upstream.name)
        # The last head contains the earlier ones. The documented order is kept all the same: a person
        # who does not know that fetches each.
        for pull in upstream.pulls:
            lines.append(f'git -C {upstream.name} fetch -q --depth=1 "{source}" pull/{pull.number}/head')
            lines.append(f"git -C {upstream.name} checkout -q FETCH_HEAD")
    return "\n".join(lines) + "\n"


def shared_clones() -> str:
    """What git alone offers for a second workspace: clones that borrow from complete local mirrors."""
    lines = []
    for upstream in UPSTREAMS:
        lines.append(f'git clone -q --shared --no-checkout "$MIRRORS/{upstream.name}.git"')
        lines.append(f"git -C {upstream.name} checkout -q {upstream.result}")
    return "\n".join(lines) + "\n" + assemble()


class Peers:
    """Builds the contenders' commands for one lab."""

    def __init__(self, lab: Path, environment: Mapping[str, str], tar: Path, python: str) -> None:
        self._lab = lab
        self._env = dict(environment)
        self._tar = tar
        self._python = python
        self._tools = lab / "peers"

    def install(self) -> dict[str, str]:
        """Put the peers into a virtual environment of their own. Returns their versions. Raises HostError."""
        wanted = REQUIREMENTS.read_text()
        marker = self._tools / "installed.txt"
        if not marker.is_file() or marker.read_text() != wanted:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(self._tools)], check=True)
            pip = [str(self._tools / "bin" / "pip"), "install", "-q", "--disable-pip-version-check"]
            done = subprocess.run([*pip, "-r", str(REQUIREMENTS)], capture_output=True, text=True)
            if done.returncode:
                raise HostError(
                    "The peers can't be installed", where=str(REQUIREMENTS), why=done.stderr.strip()
                )
        for tool in TOOLS:
            trial = subprocess.run(
                [str(self._tools / "bin" / tool), "--help"], capture_output=True, text=True
            )
            if trial.returncode:
                raise HostError(
                    f"The peer {tool} does not run", where=str(self._tools), why=trial.stderr[-300:]
                )
        marker.write_text(wanted)
        return dict(line.split("==") for line in wanted.split())

    def script(self, text: str, *, history: bool = False) -> Callable[[str, Path, Path], Command]:
        """A command factory for a bash script that runs in the workspace folder.

        history: it fetches history, so it needs the placeholder blobs at hand (see README.md).
        """

        def command(url: str, workspace: Path, cache: Path) -> Command:
            variables = {"URL": url, "WS": str(workspace), "CACHE": str(cache), "FLOOR": str(self._tar)}
            variables["MIRRORS"] = str(self._lab / "served")
            variables["PATH"] = f"{self._tools / 'bin'}{os.pathsep}{self._env['PATH']}"
            if history:
                variables["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = str(self._lab / "placeholders")
            argv = ("bash", "-ec", 'mkdir -p "$WS"; cd "$WS"\n' + text)
            return Command(argv, self._env | variables)

        return command

    def floor(self) -> Contender:
        return Contender(
            "tar", "`tar -xf` of the result", self.script('mkdir code; tar -xf "$FLOOR" -C code'), peer=False
        )

    def import_floor(self) -> Contender:
        """What any command of a typer program costs before its first line."""

        def command(url: str, workspace: Path, cache: Path) -> Command:
            return Command((self._python, "-c", "import typer"), self._env)

        return Contender("typer", "`python -c 'import typer'`", command, peer=False)

    def cold(self) -> list[Contender]:
        unmerged = "no merges: PR heads are fetched and checked out by hand"
        return [
            Contender(
                "documented",
                "as documented: full clones, checkout, merge, `cp -r`",
                self.script(documented(), history=True),
                ("the edit of `megatron_workers.py` that the README asks for", _DRIFT, _NO_PROOF),
            ),
            Contender("west", "west, narrow, depth 1", self.script(west("")), (unmerged, _DRIFT, _NO_PROOF)),
            Contender(
                "git-aggregator",
                "git-aggregator -j2, tuned depth",
                self.script(git_aggregator(), history=True),
                ("assembly by hand", "depths found by trial (540 for verl)", _DRIFT, _NO_PROOF),
            ),
            Contender(
                "vcstool2", "vcstool2 --shallow -w6", self.script(vcstool2()), (unmerged, _DRIFT, _NO_PROOF)
            ),
        ]

    def warm(self) -> list[Contender]:
        return [
            Contender(
                "west",
                "west with a warm --auto-cache",
                self.script(west('--auto-cache "$CACHE"'), history=True),
                ("PR heads still come over the network", _DRIFT, _NO_PROOF),
            ),
            Contender(
                "git clone --shared",
                "clones that borrow from complete local mirrors, `cp -r`",
                self.script(shared_clones()),
                ("breaks when a mirror moves", "somebody has to keep the mirrors", _NO_PROOF),
            ),
        ]

    def again(self) -> list[Contender]:
        """The second run of each tool in a workspace its first run made."""
        return [
            Contender(
                "west",
                "west update",
                self.script("west -q update --narrow -o=--depth=1"),
                (
                    "does not look at the code tree",
                    "moves the merged repositories back to their pins",
                    _NO_PROOF,
                ),
            ),
            Contender(
                "git-aggregator",
                "gitaggregate",
                self.script(AGGREGATE, history=True),
                ("merges again", _NO_PROOF),
            ),
            Contender(
                "vcstool2",
                "vcs import",
                self.script(IMPORT),
                ("moves the merged repositories back to their pins", _NO_PROOF),
            ),
        ]

    def checks(self) -> tuple[Contender, Contender]:
        """The nearest thing without npu-rl to a quick and to a deep look at a code tree."""
        status = "".join(f"git -C {u.name} status --porcelain\n" for u in UPSTREAMS)
        quick = Contender(
            "git status",
            "`git status` in seven clones",
            self.script(status),
            ("says nothing of the assembled code tree", "nor of the pins"),
        )
        deep = Contender(
            "tar --diff",
            "`tar -df` against the result",
            self.script('tar -df "$FLOOR" -C code'),
            ("untracked files",),
        )
        return quick, deep
