"""The examples of the documentation: read from its pages, run, and written anew.

A fenced block stands under a comment that says what is done with it:

    <!-- runs: SCENE -->    its `$ ` lines are run one after the other and have to print the lines below them;
                            a shell block is run as a whole and has to succeed. Those of the scene `tutorial` are
                            run in one folder, from top to bottom, files included
    <!-- file: NAME -->     the scenes that come after it find the block as a file of this name
    <!-- not run: WHY -->   nothing but its npu-rl lines, which have to be commands of the real command line
    <!-- excerpt: WHY -->   YAML that is no whole manifest or recipe

In a transcript `...` stands for any lines. After a message has changed, `python -m tests.doc_pages` runs every scene
that can be run here and writes what was printed into the pages; without NPU_RL_UPSTREAMS scenes with git sources stay.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support import ROOT, command_server, index_env, ok, rewrites, run_cli

PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
    ),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "npu_rl" / "training" / "injected" / "README.md",
    ROOT / "npu_rl" / "rehearsal" / "injected" / "README.md",
    *sorted((ROOT / "npu_rl" / "rehearsal" / "standins").glob("*/README.md")),
]
HOME = "/home/you"  # stands for the folder of a scene
NEEDS_UPSTREAMS = frozenset({"mine", "wrong"})
NEEDS_INDEX = frozenset({"quickstart", "set-up", "data", "tutorial"})
TUTORIAL = "tutorial"
_VARYING = (
    (re.compile(r"[\d.]+ [kMG]?B received, [\d.]+ s\."), "SIZE received, SECONDS s."),
    (re.compile(r"files \(.* since last proven\)"), "files (SOME read)"),
    (re.compile(r"locked at [0-9a-f]{12}"), "locked at ID"),  # of a branch, which moves on
)
_PROGRESS = re.compile(
    r"[\w-]+: (fetching from |[\d.]+ [kMG]?B$)|reading the files: "
)  # left out: a page shows results


@dataclass(frozen=True)
class Block:
    """One fenced block. mark, said: the comment above it, such as ("runs", "quickstart"); both "" without one."""

    page: Path
    line: int
    language: str
    text: str
    mark: str
    said: str

    @property
    def id(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, those in lists included."""
    found, mark, lines = [], ("", ""), iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        if told := re.fullmatch(r"\s*<!-- (runs|file|not run|excerpt): (.+) -->", line):
            mark = (told[1], told[2])
        elif fence := re.fullmatch(r"( *)```(\w*)", line):
            text = []
            for _, inner in lines:
                if inner == f"{fence[1]}```":
                    break
                text.append(inner.removeprefix(fence[1]) + "\n")
            found.append(Block(page, number, fence[2], "".join(text), *mark))
            mark = ("", "")
        elif line.strip():
            mark = ("", "")
    return found


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def typed_commands(page: Path) -> Iterator[str]:
    """The npu-rl commands of a page's blocks, one line each, without prompts and comments."""
    for block in blocks(page):
        for line in (
            block.text.replace("\\\n", " ").splitlines() if block.language in ("sh", "console") else []
        ):
            if block.language == "sh" or line.startswith("$ "):
                parts = re.split(r"&&|\|\||;|\s[|#]\s|\s>", line.removeprefix("$ "))
                yield from (part.strip() for part in parts if re.match(r"\s*(\.venv/bin/)?npu-rl ", part))


def transcript(block: Block) -> list[tuple[str, list[str]]]:
    """The commands of a transcript, each with the lines that it prints."""
    said: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            said.append((line[2:], []))
        else:
            said[-1][1].append(line)
    return said


def run_scene(block: Block, folder: Path, env: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Run a transcript's commands in a prepared folder; each with the lines that it really printed."""
    printed = []
    for line, _ in transcript(block):
        said = run_shell(line, folder, env).stdout.replace(str(folder), HOME).splitlines()
        printed.append((line, [one for one in said if not _PROGRESS.match(one)]))
    return printed


def run_shell(text: str, folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run shell lines in a prepared folder, up to the first that fails, with this checkout's npu-rl on PATH."""
    text_of_client, handle = command_server().program()
    client, command = folder / "bin" / "client.py", folder / "bin" / "npu-rl"
    command.parent.mkdir(exist_ok=True)
    client.write_text(text_of_client)
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS {shlex.quote(str(client))} "$@"\n')
    command.chmod(0o755)
    return subprocess.run(
        ["bash", "-e", "-c", text],
        cwd=folder,
        env={**env, "PATH": f"{command.parent}{os.pathsep}{env['PATH']}", "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
        pass_fds=[handle],
    )


def prepare(
    scene: str, folder: Path, page: Path, *, upstreams: Path | None = None, store: Path | None = None
) -> dict[str, str]:
    """What a scene begins with: its files, and an environment of its own.

    upstreams: the folder NPU_RL_UPSTREAMS names, for those of NEEDS_UPSTREAMS. store: one that may be filled already.
    """
    env = index_env(folder, store)
    if scene in ("set-up", "data"):
        ok(run_cli(["setup", "--manifest", "quickstart"], env, folder, timeout=300))
    if scene not in (*NEEDS_UPSTREAMS, "data"):
        return env
    for block in blocks(page):
        if block.mark == "file":
            (folder / block.said).write_text(block.text, encoding="utf-8")
    if scene == "data":
        return env
    manifest = (folder / "mine.yaml").read_text(encoding="utf-8")
    (folder / "merge.yaml").write_text(manifest.replace(", how: pick", ""), encoding="utf-8")
    (folder / "patched.yaml").write_text(
        re.sub(r"^ +merge:.*\n", "", manifest, flags=re.M).replace("[verl/54c9b73]", "[./fix.patch]"),
        encoding="utf-8",
    )
    patch = (ROOT / "patchsets/verl/54c9b73/0001-prelude-patch.patch").read_text(encoding="utf-8")
    (folder / "fix.patch").write_text(
        patch.replace("\n import time\n", "\n import timing\n"), encoding="utf-8"
    )
    assert upstreams is not None
    return {**env, "NPU_RL_REWRITE": rewrites(upstreams, str(folder / "mine.yaml"))}


def agree(shown: list[str], printed: list[str]) -> bool:
    """Whether a page shows what was printed, whatever its sizes and times, and what `...` stands for."""
    wanted = "".join(f"{_steady(line)}\n" for line in shown)
    pattern = r"(?:.*\n)*?".join(re.escape(part) for part in re.split(r"^\.\.\.\n", wanted, flags=re.M))
    return re.fullmatch(pattern, "".join(f"{_steady(line)}\n" for line in printed)) is not None


def _steady(line: str) -> str:
    for pattern, word in _VARYING:
        line = pattern.sub(word, line)
    return line


def _written(block: Block, printed: list[tuple[str, list[str]]]) -> str:
    """A transcript with what was printed now; what agrees already, cuts included, stays as it is."""
    lines = []
    for (command, shown), (_, now) in zip(transcript(block), printed, strict=True):
        kept = shown if agree(shown, now) else _cut_as(shown, now)
        lines += [f"$ {command}", *kept]
    return "".join(f"{line}\n" for line in lines)


def _cut_as(shown: list[str], now: list[str]) -> list[str]:
    """New lines, cut after as many as the page shows before its first `...`."""
    return [*now[: shown.index("...")], "..."] if "..." in shown else now


def main() -> None:
    """Run the scenes of every page and write what they print."""
    given = os.environ.get("NPU_RL_UPSTREAMS")
    upstreams = Path(given).absolute() if given else None
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in blocks(page):
            if (
                block.language != "console"
                or block.mark != "runs"
                or block.said == TUTORIAL
                or (block.said in NEEDS_UPSTREAMS and upstreams is None)
            ):
                continue
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name).resolve()
                env = prepare(block.said, folder, page, upstreams=upstreams)
                printed = run_scene(block, folder, env)
            text = text.replace(f"```console\n{block.text}```", f"```console\n{_written(block, printed)}```")
        if text != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            print(f"{page.relative_to(ROOT)} written")


if __name__ == "__main__":
    main()
