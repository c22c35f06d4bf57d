"""The only file that runs git.

Every call names its repository (GIT_DIR), sees none of the user's configuration unless it talks to
a network, runs no hook, asks no question and speaks English. Traps behind the settings are listed in
the project's facts on git; each line below once failed without its setting.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from npu_rl.errors import HostError, NpuRlError

MINIMUM_VERSION = (2, 34)  # Ubuntu 22.04
MERGE_TREE_VERSION = (2, 38)  # the first `git merge-tree --write-tree`
ALLOWED_PROTOCOLS = "https:http:ssh:git:file"

_NULL = os.devnull

# What decides ids and bytes. Set for every call, network or not.
_CONFIG: dict[str, str] = {
    "core.hooksPath": _NULL,
    "core.attributesFile": _NULL,
    "core.excludesFile": _NULL,
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.safecrlf": "false",
    "core.fileMode": "true",
    "core.symlinks": "true",
    "core.ignoreCase": "false",
    "core.precomposeUnicode": "false",
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.splitIndex": "false",
    "core.fsync": "none",  # packs are checked by hash at every use instead
    "core.looseCompression": "1",
    "apply.whitespace": "nowarn",
    "apply.ignoreWhitespace": "no",
    "merge.conflictStyle": "merge",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "fetch.negotiationAlgorithm": "noop",
    "fetch.unpackLimit": "1",
    "transfer.unpackLimit": "1",
    "fetch.fsckObjects": "false",  # real histories have old, harmless flaws
    "fetch.writeCommitGraph": "false",
    "fetch.bundleURI": "",
    "transfer.bundleURI": "false",
    "protocol.version": "2",
    "protocol.ext.allow": "never",
    "filter.lfs.smudge": "cat",
    "filter.lfs.required": "false",
    "advice.detachedHead": "false",
    "http.followRedirects": "initial",
}

# Settings of the user's that a fetch must honour: how to reach a host and who one is.
_KEPT_GIT_VARIABLES = re.compile(r"^GIT_(SSH|SSH_COMMAND|SSH_VARIANT|SSL_\w+|PROXY_\w+|ASKPASS|HTTP_\w+)$")
_KEPT_VARIABLES = ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "GIT_EXEC_PATH", "SYSTEMROOT")

_CREDENTIALS = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@'\"]+@")


def redact(text: str) -> str:
    """The text with user names, passwords and tokens in URLs replaced."""
    return _CREDENTIALS.sub(r"\g<scheme>***@", text)


class GitError(NpuRlError):
    """git said no. `stderr` is redacted; `code` is its exit status (negative: killed by that signal)."""

    def __init__(self, args: Sequence[str], code: int, stderr: str, *, stalled: float | None = None) -> None:
        self.command = "git " + " ".join(args[:6]) + (" …" if len(args) > 6 else "")
        self.code = code
        self.stderr = redact(stderr).strip()
        self.stalled = stalled
        why = self.stderr or f"exit status {code}"
        if stalled is not None:
            why = f"no data for {stalled:g} seconds"
        super().__init__(f"{redact(self.command)} failed", why=why)


@dataclass(frozen=True)
class Result:
    """What a git process left: raw output, its messages, its exit status."""

    stdout: bytes
    stderr: str
    code: int

    def text(self) -> str:
        return self.stdout.decode("utf-8", "surrogateescape").strip()


def _configuration(pairs: Iterable[tuple[str, str]], start: int = 0) -> dict[str, str]:
    """Settings as environment variables: nothing in a file, nothing on a command line that `ps` shows."""
    variables: dict[str, str] = {}
    count = start
    for key, value in pairs:
        variables[f"GIT_CONFIG_KEY_{count}"] = key
        variables[f"GIT_CONFIG_VALUE_{count}"] = value
        count += 1
    variables["GIT_CONFIG_COUNT"] = str(count)
    return variables


_ALWAYS = {
    "LC_ALL": "C",
    "LANGUAGE": "C",
    "TZ": "UTC",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_ALLOW_PROTOCOL": ALLOWED_PROTOCOLS,
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": ":",
}


def local_environment() -> dict[str, str]:
    """The whole environment of a git process that touches no network."""
    env = {k: os.environ[k] for k in _KEPT_VARIABLES if k in os.environ}
    env.update(_ALWAYS)
    env.update(
        HOME=_NULL,
        XDG_CONFIG_HOME=_NULL,
        GIT_CONFIG_NOSYSTEM="1",
        GIT_CONFIG_GLOBAL=_NULL,
        GIT_CONFIG_SYSTEM=_NULL,
    )
    env.update(_configuration(_CONFIG.items()))
    return env


def network_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """As local, but with the user's own proxies, certificates, credential helpers and `insteadOf`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or _KEPT_GIT_VARIABLES.match(k)}
    count = int(os.environ.get("GIT_CONFIG_COUNT") or 0)
    for i in range(count):
        for part in ("KEY", "VALUE"):
            name = f"GIT_CONFIG_{part}_{i}"
            env[name] = os.environ.get(name, "")
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"):
        if name in os.environ:
            env[name] = os.environ[name]
    env.update(_ALWAYS)
    env.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
    env.update(_configuration([*_CONFIG.items(), *(extra or {}).items()], start=count))
    return env


@dataclass(frozen=True)
class Git:
    """A repository, and how to look at it: `index`, `work_tree` and borrowed object folders are explicit."""

    git_dir: Path
    work_tree: Path | None = None
    index: Path | None = None
    alternates: tuple[Path, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)

    def environment(self, network: Mapping[str, str] | None = None) -> dict[str, str]:
        env = local_environment() if network is None else network_environment(network)
        env["GIT_DIR"] = str(self.git_dir)
        if self.work_tree is not None:
            env["GIT_WORK_TREE"] = str(self.work_tree)
        if self.index is not None:
            env["GIT_INDEX_FILE"] = str(self.index)
        if self.alternates:
            env["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = os.pathsep.join(_quoted(p) for p in self.alternates)
        env.update(self.extra)
        return env

    def run(
        self,
        *args: str,
        input: bytes | None = None,
        ok: Sequence[int] = (0,),
    ) -> Result:
        """Run git and wait. Raises `GitError` for an exit status that is not in `ok`."""
        done = _spawn(args, self.environment(), input, cwd=self.work_tree or self.git_dir)
        if done.code not in ok:
            raise GitError(args, done.code, done.stderr)
        return done

    def text(self, *args: str, input: bytes | None = None) -> str:
        return self.run(*args, input=input).text()

    def lines(self, *args: str, input: bytes | None = None) -> list[bytes]:
        """Output split at NUL: for the `-z` forms."""
        return [line for line in self.run(*args, input=input).stdout.split(b"\0") if line]

    def transfer(
        self,
        *args: str,
        config: Mapping[str, str],
        input: bytes | None = None,
        stall: float = 60.0,
        on_progress: Callable[[str], None] | None = None,
    ) -> Result:
        """Run a git command that talks to a remote.

        config: settings for this process only, among them the `url.<real>.insteadOf` that keeps the
        real URL, and any password in it, off the command line and out of every file.
        stall: seconds without a sign of life before the process group is stopped.
        on_progress: called with each progress line of git.
        Raises GitError; `stalled` is set when the watchdog ended it.
        """
        return _watched(args, self.environment(config), input, self.git_dir, stall, on_progress)


class ObjectReader:
    """Objects by id through one `git cat-file --batch`: a process per read would cost 3 ms each."""

    def __init__(self, repository: Git) -> None:
        self._process = subprocess.Popen(
            ["git", "cat-file", "--batch"],
            env=repository.environment(),
            cwd=repository.git_dir,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def read(self, oid: str) -> tuple[str, bytes]:
        """Kind and content. Raises GitError if the object isn't there."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(oid.encode() + b"\n")
        process.stdin.flush()
        head = process.stdout.readline().split()
        if len(head) != 3:
            raise GitError(["cat-file", oid], 128, f"object {oid} is missing")
        data = process.stdout.read(int(head[2]))
        process.stdout.read(1)
        return head[1].decode(), data

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()

    def __enter__(self) -> ObjectReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _quoted(path: Path) -> str:
    text = str(path)
    if os.pathsep in text or text.startswith('"') or "\n" in text:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return text


def _spawn(args: Sequence[str], env: Mapping[str, str], input: bytes | None, cwd: Path | None) -> Result:
    try:
        done = subprocess.run(
            ["git", *args],
            env=dict(env),
            cwd=cwd,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=False,
        )
    except FileNotFoundError as error:
        raise _absent(error) from error
    return Result(done.stdout, done.stderr.decode("utf-8", "replace"), done.returncode)


def _absent(error: FileNotFoundError) -> NpuRlError:
    if error.filename and str(error.filename) != "git":
        return HostError(f"The folder {error.filename} is gone", hint="Run the command again.")
    return HostError(
        "git is not installed, or not on PATH",
        hint=f"Install git {_dotted(MINIMUM_VERSION)} or newer (apt install git, yum install git).",
    )


def _watched(
    args: Sequence[str],
    env: Mapping[str, str],
    input: bytes | None,
    cwd: Path,
    stall: float,
    on_progress: Callable[[str], None] | None,
) -> Result:
    try:
        process = subprocess.Popen(
            ["git", *args],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # git starts helpers; the watchdog ends them all
        )
    except FileNotFoundError as error:
        raise _absent(error) from error
    alive = [time.monotonic()]
    messages: list[str] = []
    output: list[bytes] = []

    def read_messages() -> None:
        assert process.stderr is not None
        buffer = b""
        while chunk := os.read(process.stderr.fileno(), 65536):
            alive[0] = time.monotonic()
            *lines, buffer = re.split(rb"[\r\n]", buffer + chunk)
            for line in lines:
                _message(line)
        _message(buffer)

    def _message(raw: bytes) -> None:
        line = raw.decode("utf-8", "replace").strip()
        if not line:
            return
        if re.match(
            r"^(remote: )?(Receiving|Resolving|Counting|Compressing|Enumerating|Unpacking)\b", line
        ) or line.startswith("remote: Total"):
            if on_progress is not None:
                on_progress(line)
        else:
            messages.append(line)

    def read_output() -> None:
        assert process.stdout is not None
        while chunk := os.read(process.stdout.fileno(), 65536):
            alive[0] = time.monotonic()
            output.append(chunk)

    readers = [threading.Thread(target=t, daemon=True) for t in (read_messages, read_output)]
    for reader in readers:
        reader.start()
    stalled: float | None = None
    try:
        if input is not None:
            assert process.stdin is not None
            try:
                process.stdin.write(input)
                process.stdin.close()
            except BrokenPipeError:
                pass  # its exit status and messages say why
        while True:
            try:
                process.wait(timeout=min(1.0, max(stall / 4, 0.02)))
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() - alive[0] > stall:
                    stalled = stall
                    break
    finally:
        if process.poll() is None:
            _stop(process)
    for reader in readers:
        reader.join(timeout=5)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    if process.returncode != 0 or stalled is not None:
        raise GitError(args, process.returncode, "\n".join(messages), stalled=stalled)
    return Result(b"".join(output), "\n".join(messages), 0)


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(timeout=3)
            return
        except subprocess.TimeoutExpired:
            continue


def subjects(repository: Git, ids: Sequence[str]) -> list[str]:
    """First lines of commit messages, read with GitPython's object model straight from the packs."""
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    import git as gitpython

    # GitDB reads objects in Python; nothing of this starts a process or sees the user's configuration.
    with gitpython.Repo(repository.git_dir, odbt=gitpython.GitDB) as repo:
        return [str(repo.commit(oid).summary) for oid in ids]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


@lru_cache(maxsize=1)
def version() -> tuple[int, int]:
    """Major and minor version of the git on PATH. Raises HostError if there is none or it is too old."""
    done = _spawn(["version"], local_environment(), None, None)
    found = re.search(r"(\d+)\.(\d+)", done.stdout.decode("utf-8", "replace"))
    if done.code or not found:
        raise HostError("git does not tell its version", why=done.stderr.strip() or None)
    number = (int(found[1]), int(found[2]))
    if number < MINIMUM_VERSION:
        raise HostError(
            f"git {_dotted(number)} is too old",
            why=f"npu-rl needs git {_dotted(MINIMUM_VERSION)} or newer.",
            hint="Install a newer git, or put one first on PATH.",
        )
    return number


def require(minimum: tuple[int, int], purpose: str) -> None:
    """Raise HostError unless git is at least `minimum`. `purpose` completes "git X can't …"."""
    number = version()
    if number < minimum:
        raise HostError(
            f"git {_dotted(number)} can't {purpose}",
            why=f"This needs git {_dotted(minimum)} or newer; `setup` and `verify` do not.",
            hint="Run `npu-rl lock` where git is newer, and commit the lock it writes.",
        )


# What stands in `info/attributes`, above any .gitattributes of an upstream: bytes are bytes.
ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding -crlf !merge !diff !whitespace\n"


def init_bare(path: Path, *, bare: bool = True) -> None:
    """Write an empty repository: what `git init` would, less its template, hooks and one process."""
    for folder in ("objects/info", "objects/pack", "refs", "info"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    (path / "HEAD").write_text("ref: refs/heads/main\n")
    (path / "config").write_text(
        f"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = {str(bare).lower()}\n"
    )
    (path / "info" / "attributes").write_text(ATTRIBUTES)


if sys.platform == "win32":  # pragma: no cover
    raise HostError("npu-rl runs on Linux and macOS", hint="On Windows, use WSL 2.")
