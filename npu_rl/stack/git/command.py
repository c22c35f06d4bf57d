"""Git processes: the only module that starts git.

Each call sets its repository (GIT_DIR), ignores the user's configuration unless it uses the network, runs no hooks
and prompts for nothing. Output is in English. `environment` has the settings.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO

from npu_rl.common.errors import HostError
from npu_rl.stack.git import command_log
from npu_rl.stack.git.environment import Credentials, local_environment, network_environment
from npu_rl.stack.git.messages import GitError, GitStopped, MessageStream, check_disk, not_started

MINIMUM_VERSION = (2, 34)  # Ubuntu 22.04
MERGE_TREE_VERSION = (2, 38)  # the first `git merge-tree --write-tree`

_TICK = 0.2  # seconds between checks of the clock while git prints nothing
_CAT_FILE = ("cat-file", "--batch")
_GRACE = 3.0  # seconds that git has to clean up after SIGTERM


@dataclass(frozen=True)
class Result:
    """Output, messages and exit status of a git process."""

    stdout: bytes
    stderr: str
    code: int

    def text(self) -> str:
        """Return the output as text, without surrounding whitespace."""
        return self.stdout.decode("utf-8", "surrogateescape").strip()


@dataclass(frozen=True)
class Git:
    """A repository, with its index, work tree and alternate object folders given explicitly."""

    git_dir: Path
    work_tree: Path | None = None
    index: Path | None = None
    alternates: tuple[Path, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return the environment of a local command in this repository."""
        return self._with_locations(local_environment())

    def _with_locations(self, env: dict[str, str]) -> dict[str, str]:
        env["GIT_DIR"] = str(self.git_dir)
        if self.work_tree is not None:
            env["GIT_WORK_TREE"] = str(self.work_tree)
        if self.index is not None:
            env["GIT_INDEX_FILE"] = str(self.index)
        if self.alternates:
            env["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = os.pathsep.join(_quoted(p) for p in self.alternates)
        env.update(self.extra)
        return env

    def run(self, *args: str, input: bytes | None = None, ok: Sequence[int] = (0,)) -> Result:
        """Run git and wait for it to exit.

        Raises `GitError` for an exit status that is not in `ok`, HostError if the disk is full.
        """
        place = self.work_tree or self.git_dir
        done = _run(args, self.environment(), input, cwd=place)
        if done.code:
            check_disk(done.stderr, place)
        if done.code not in ok:
            raise GitError(args, done.code, done.stderr)
        return done

    def text(self, *args: str, input: bytes | None = None) -> str:
        """Run git and return its output as text."""
        return self.run(*args, input=input).text()

    def lines(self, *args: str) -> list[bytes]:
        """Run git and return its output split at NUL, for commands with `-z`."""
        return [line for line in self.run(*args).stdout.split(b"\0") if line]

    def batch_check(self, fact: str, oids: Iterable[str]) -> dict[str, str]:
        """Return one property of each object, such as its `objecttype`; "missing" if it does not exist."""
        ids = "".join(f"{oid}\n" for oid in oids).encode()
        listing = self.run("cat-file", f"--batch-check=%(objectname) %({fact})", input=ids).text()
        return dict(line.split(" ", 1) for line in listing.splitlines())

    def transfer(
        self,
        *args: str,
        config: Mapping[str, str],
        input: bytes | None = None,
        credentials: Credentials | None = None,
        stall: float = 60.0,
        on_progress: Callable[[str], None] | None = None,
        stop: threading.Event | None = None,
    ) -> Result:
        """Run a git command that talks to a remote.

        Raises GitError (`stalled` is set when the watchdog ended it), HostError if the disk is full.

        Args:
            config, credentials: For this process only; they are written to no file and no command line.
            stall: Seconds without data after which the process group is stopped.
            on_progress: Called with each progress line of git.
            stop: Event that ends the transfer with GitStopped.
        """
        env = self._with_locations(network_environment(config, credentials))
        with command_log.recorded(args, self.git_dir, credentials) as outcome:
            watch = _Watch(stall, on_progress, stop or threading.Event(), outcome)
            return _run_watched(args, env, input, self.git_dir, watch)


class ObjectReader:
    """Reader of objects by id, through one `git cat-file --batch`: a process per read costs 3 ms each."""

    def __init__(self, repository: Git) -> None:
        self._ended = contextlib.ExitStack()
        self._outcome = self._ended.enter_context(command_log.recorded(_CAT_FILE, repository.git_dir))
        env, pipe, null = repository.environment(), subprocess.PIPE, subprocess.DEVNULL
        self._process = _start(_CAT_FILE, env, repository.git_dir, stdin=pipe, stderr=null)

    def read(self, oid: str) -> tuple[str, bytes]:
        """Return an object's type and content. Raises GitError if it is missing or damaged."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(oid.encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise GitError(
                ["cat-file", oid], process.wait(), "git exited while reading an earlier object"
            ) from None
        head = process.stdout.readline().split()
        if len(head) != 3:
            damaged = "is damaged" if not head else "is missing"
            raise GitError(["cat-file", oid], 128, f"object {oid} {damaged}")
        size = int(head[2])
        data = process.stdout.read(size + 1)
        if len(data) != size + 1:
            raise GitError(["cat-file", oid], 128, f"object {oid} is damaged")
        return head[1].decode(), data[:-1]

    def close(self) -> None:
        """Close the pipes and wait for the process to exit."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended already
                stream.close()
        self._outcome.code = self._process.wait()
        self._ended.close()

    def __enter__(self) -> ObjectReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _quoted(path: Path) -> str:
    text = str(path)
    if os.pathsep in text or text.startswith('"') or "\n" in text:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return text


def _start(
    args: Sequence[str],
    env: Mapping[str, str],
    cwd: Path | None,
    *,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int = subprocess.PIPE,
    new_session: bool = False,
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            ["git", *args],
            env=dict(env),
            cwd=cwd,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=new_session,
            restore_signals=False,  # so that git reports the limit on file sizes instead of being killed
        )
    except OSError as error:
        raise not_started(error, _dotted(MINIMUM_VERSION)) from error


def _run(args: Sequence[str], env: Mapping[str, str], input: bytes | None, cwd: Path | None) -> Result:
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    with command_log.recorded(args, cwd) as outcome:
        with _start(args, env, cwd, stdin=stdin) as process:
            try:
                stdout, stderr = process.communicate(input)
            finally:
                process.kill()  # only an interruption finds it alive
        outcome.stderr, outcome.code = stderr.decode("utf-8", "replace"), process.returncode
    return Result(stdout, outcome.stderr, process.returncode)


@dataclass(frozen=True)
class _Watch:
    """Limits and callbacks of one transfer, as `Git.transfer` takes them."""

    stall: float
    on_progress: Callable[[str], None] | None
    stop: threading.Event
    outcome: command_log.CommandOutcome


def _run_watched(
    args: Sequence[str], env: Mapping[str, str], input: bytes | None, cwd: Path, watch: _Watch
) -> Result:
    if watch.stop.is_set():
        raise GitStopped
    import tempfile  # only a fetch pays for it

    with tempfile.TemporaryFile(dir=cwd) as stdin_file:  # a pipe could fill up and block
        stdin_file.write(input or b"")
        stdin_file.seek(0)
        # A session of its own: git's helpers can be stopped with it, and none of them has a terminal to prompt on.
        process = _start(args, env, cwd, stdin=stdin_file, new_session=True)
    messages_of_git = MessageStream(watch.on_progress)
    output: list[bytes] = []
    with process:
        try:
            stalled = not _read_output(process, watch, output, messages_of_git)
        finally:
            _stop(process)
            watch.outcome.stderr, watch.outcome.code = messages_of_git.text(), process.returncode
    messages = messages_of_git.text()
    if stalled or process.returncode != 0:
        check_disk(messages, cwd)
        received, seconds = bool(output) or messages_of_git.received_data, watch.stall if stalled else None
        raise GitError(args, process.returncode, messages, stalled=seconds, received_data=received)
    return Result(b"".join(output), messages, 0)


def _read_output(
    process: subprocess.Popen[bytes], watch: _Watch, output: list[bytes], messages_of_git: MessageStream
) -> bool:
    """Read the output of a process until it exits (True) or stalls (False)."""
    tick = min(_TICK, watch.stall / 4)
    last_data = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, output.append)  # type: ignore[arg-type]
        selector.register(process.stderr, selectors.EVENT_READ, messages_of_git.feed)  # type: ignore[arg-type]
        while True:
            # Before the pipes are read: a process that exits between the two may have written until then.
            exited = process.poll() is not None
            if selector.get_map():
                ready = selector.select(0 if exited else tick)
            else:
                ready = []
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(tick)
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                if data:
                    last_data = time.monotonic()
                    key.data(data)
                else:
                    selector.unregister(key.fileobj)
            if watch.stop.is_set():
                raise GitStopped
            # The pipes may stay open longer: an ssh master or a credential cache that git started has them.
            if exited and not ready:
                return True
            if time.monotonic() - last_data > watch.stall:
                return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the process and its children, unless it has exited."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):  # macOS raises the latter for a group of zombies
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


@lru_cache(maxsize=1)
def git_version() -> tuple[int, int]:
    """Return the major and minor version of git on PATH. Raises HostError if git is missing or too old."""
    done = _run(["version"], local_environment(), None, None)
    found = re.search(r"(\d+)\.(\d+)", done.stdout.decode("utf-8", "replace"))
    if done.code or not found:
        raise HostError(
            "The version of git can't be determined",
            why=done.stderr.strip() or None,
            hint="Check that `git version` works in this shell.",
        )
    number = (int(found[1]), int(found[2]))
    if number < MINIMUM_VERSION:
        raise HostError(
            f"git {_dotted(number)} is too old",
            why=f"npu-rl needs git {_dotted(MINIMUM_VERSION)} or newer.",
            hint="Install a newer git, or put one first on PATH.",
        )
    return number


def require_git(minimum: tuple[int, int], purpose: str) -> None:
    """Raise HostError unless git is at least `minimum`. `purpose` completes "git X can't …"."""
    number = git_version()
    if number < minimum:
        raise HostError(
            f"git {_dotted(number)} can't {purpose}",
            why=f"This needs git {_dotted(minimum)} or newer; `setup` and `verify` do not.",
            hint="Run `npu-rl lock` where git is newer, and commit the lock it writes.",
        )


# Content of `info/attributes`, which overrides every .gitattributes of an upstream: no file is converted.
ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding -crlf !merge !diff !whitespace\n"


def bare_settings(*, bare: bool) -> str:
    """Return the configuration of an empty repository."""
    return f"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = {str(bare).lower()}\n"


def init_bare(path: Path, *, bare: bool = True, settings: Mapping[str, str] | None = None) -> None:
    """Create an empty repository as `git init` does, without templates, hooks or a process.

    Args:
        settings: Configuration to add, by the key as `git config` has it.
    """
    for folder in ("objects/info", "objects/pack", "refs", "info"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    (path / "HEAD").write_text("ref: refs/heads/main\n")
    (path / "config").write_text(
        bare_settings(bare=bare) + "".join(_setting(*pair) for pair in (settings or {}).items())
    )
    (path / "info" / "attributes").write_text(ATTRIBUTES)


def _setting(key: str, value: str) -> str:
    head, _, name = key.rpartition(".")
    section, dot, subsection = head.partition(".")
    place = f'{section} "{subsection}"' if dot else section
    return f"[{place}]\n\t{name} = {value}\n"


if sys.platform == "win32":  # pragma: no cover
    raise HostError("npu-rl runs on Linux and macOS", hint="On Windows, use WSL 2.")
