"""What many tests need: real git repositories with fixed dates, real servers for them, and the real command.

Everything is made in folders the test gives; servers listen on 127.0.0.1 on a port the system chose, and
the port is open before the caller learns its number, so nothing has to wait or to poll.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import pytest

import npu_rl
from tests.command_server import Server, read_at_start

ROOT = Path(npu_rl.__file__).resolve().parent.parent
EPOCH = 1_700_000_000  # committer date of the first commit of every repository; one minute more for each next
Files = Mapping[str, "str | bytes | File | None"]


# -- the command and its environment -------------------------------------------------------------------


def clean_env(tmp_path: Path, *, keep: Iterable[str] = ()) -> dict[str, str]:
    """An environment in which nothing of this machine or its user is seen: own HOME, store and TMPDIR.

    keep: names of variables to take over from the real one.
    """
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    env = {name: os.environ[name] for name in ("PATH", *keep) if name in os.environ} | python_env()
    env.update(
        HOME=str(tmp_path / "home"),
        TMPDIR=str(tmp_path / "tmp"),
        NPU_RL_STORE=str(tmp_path / "store"),
        NPU_RL_CONFIG=str(tmp_path / "no-config.yaml"),
        NPU_RL_BACKOFF="0",
    )
    return env


def index_env(folder: Path, store: Path | None = None) -> dict[str, str]:
    """As `clean_env`, with the package index that the user's variables and pip's own configuration in HOME name."""
    env = clean_env(folder, keep=[name for name in os.environ if name.startswith("PIP_")])
    env["HOME"] = os.environ.get("HOME", env["HOME"])
    return {**env, "NPU_RL_STORE": str(store)} if store else env


BYTE_CODE = "NPU_RL_TEST_BYTE_CODE"  # tests/conftest.py
QUICKSTART = "NPU_RL_TEST_QUICKSTART"  # the workspace that a pytest started by a test takes over


def python_env() -> dict[str, str]:
    """What of `clean_env` Python and its loader read when they start."""
    env = {"LANG": "C.UTF-8", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return env | {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


def byte_code() -> dict[str, str]:
    """Environment of processes that import a whole tree: compile it once, and leave nothing in it."""
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": os.environ[BYTE_CODE]}


def require_untouched(workspace: Path) -> None:
    """Hold a workspace against its lock after everything that tests ran in it: nothing may have been left there."""
    from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
    from npu_rl.workspace.verification.verify import verify

    report = verify(WorkspacePaths(workspace), print, deep=True)
    left = ([drift.path for drift in report.drift], report.ignored, report.byte_code)
    assert left == ([], {}, []), left


def rewrites(upstreams: Path, manifest: str) -> str:
    """NPU_RL_REWRITE that leads every git URL of a manifest to its copy OWNER+NAME/repo, else to one of that name."""
    from npu_rl.stack.manifest.load_manifest import load_manifest

    copies = sorted(upstreams.glob("*+*/repo"))
    folders = {path.parent.name.partition("+")[2].lower(): path for path in copies}
    folders |= {path.parent.name.replace("+", "/").lower(): path for path in copies}
    rules = []
    for component in load_manifest(manifest).manifest.components.values():
        submodules = [submodule.git for submodule in component.submodules.values()]
        for url in filter(None, (*(source.git for source in component.sources), *submodules)):
            owner_and_name = "/".join(url.removesuffix(".git").lower().rsplit("/", 2)[1:])
            copy = folders.get(owner_and_name) or folders.get(owner_and_name.rpartition("/")[2])
            if copy:
                rules.append(f"{url}={copy.absolute()}")
    return "\n".join(rules)


def run_cli(
    args: Sequence[str | Path],
    env: Mapping[str, str],
    cwd: Path | None = None,
    *,
    timeout: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """`npu-rl ARGS` as a process of its own. Look at `returncode`, `stdout` and `stderr`.

    It starts with its imports made (tests/command_server.py), but not where `env` has Python start otherwise.
    """
    words = [str(arg) for arg in args]
    if read_at_start(env) == read_at_start(python_env()):
        return command_server().run(words, env, os.path.abspath(cwd or "."), timeout)
    return subprocess.run(
        [sys.executable, "-m", "npu_rl", *words],
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=timeout,
        check=False,
    )


def run_program(
    words: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """A program at its end, without input; what it printed is text."""
    return subprocess.run(
        words, env=env, cwd=cwd, timeout=timeout,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


_DROP = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
for capability in range(64):
    libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: the next program does not get them back
if libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)):
    raise OSError(ctypes.get_errno(), "capset")
os.execv(sys.argv[1], sys.argv[1:])
"""


def unprivileged(words: Sequence[str | Path]) -> list[str | Path]:
    """A program as one whom permissions stop: for root, that takes giving its capabilities up."""
    return [*([sys.executable, "-c", _DROP] if os.geteuid() == 0 else []), *words]


def modules_after(words: Sequence[str | Path], env: Mapping[str, str], cwd: Path) -> set[str]:
    """Names of the modules that `npu-rl WORDS`, from nothing, has loaded when it has succeeded."""
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('\\n@@' + ' '.join(sys.modules)))\n"
        "from npu_rl.cli import main\n"
        "main()\n"
    )
    done = ok(run_program([sys.executable, "-c", code, *words], env=env, cwd=cwd))
    return set(done.stdout.rpartition("@@")[2].split())


class Ended(Protocol):
    """A command that has ended, in a process or here."""

    @property
    def returncode(self) -> int: ...
    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...


Done = TypeVar("Done", bound=Ended)


def ok(done: Done) -> Done:
    """It has succeeded."""
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done


def assert_told(done: Ended, *words: str, code: int = 1) -> None:
    """It failed with our own message, which has all these words."""
    assert "Traceback" not in done.stderr and "bug in npu-rl" not in done.stderr, done.stderr
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    for word in words:
        assert word in done.stderr, done.stderr


Value = TypeVar("Value")


def present(value: Value | None) -> Value:
    """A value that is there."""
    assert value is not None
    return value


@cache
def command_server() -> Server:
    server = Server(python_env())
    atexit.register(server.stop)
    return server


def cpu_seconds() -> float:
    """What this process and its children that have ended computed: about the same on a busy machine."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


@contextlib.contextmanager
def cpu_below(seconds: float) -> Iterator[None]:
    """What is done computes for less than this."""
    started = cpu_seconds()
    yield
    assert cpu_seconds() - started < seconds


def script(path: Path, text: str) -> Path:
    """A program of the shell."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# -- repositories --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class File:
    """A file that is not plain text: `mode` "100755" (executable), "120000" (symlink; data: its target)
    or "160000" (submodule; data: the commit id)."""

    data: str | bytes
    mode: str = "100644"


@dataclass
class Repo:
    """A bare repository at `path`, made if it isn't there. Same calls, same ids, on every machine."""

    path: Path
    _commits: int = 0
    _heads: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.path / "HEAD").exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            git("init", "-q", "--bare", "--initial-branch=main", str(self.path))

    @property
    def url(self) -> str:
        return f"file://{self.path.absolute()}"

    def git(self, *args: str, input: bytes | None = None) -> str:
        """Run git here; its output without the last newline. Raises CalledProcessError."""
        return git(*args, git_dir=self.path, input=input)

    def commit(
        self,
        files: Files,
        message: str = "change",
        *,
        on: str = "main",
        parents: Sequence[str] | None = None,
        days: int = 0,
    ) -> str:
        """A commit that changes `files` (None removes one; the rest stays) on a branch or `refs/…`; its id.

        parents: revisions, the first one's files being the start; [] begins a new history; by default the
        tip of `on`. days: how much later than other commits.
        """
        ref = on if on.startswith("refs/") else f"refs/heads/{on}"
        if parents is None:
            parents = [self._heads[ref]] if ref in self._heads else []
        stamp = EPOCH + 60 * self._commits + 86400 * days
        self._commits += 1
        body = message.encode()
        lines = [f"commit {ref}\nmark :1\n".encode()]
        lines += [
            f"{who} A U Thor <author@example.com> {stamp} +0000\n".encode() for who in ("author", "committer")
        ]
        lines += [f"data {len(body)}\n".encode(), body, b"\n"]
        lines += [
            f"{'merge' if i else 'from'} {self.id(parent)}\n".encode() for i, parent in enumerate(parents)
        ]
        lines += [_change(path, file) for path, file in files.items()]
        head = [] if parents else [f"reset {ref}\n".encode()]
        stream = b"".join([*head, *lines, b"\nget-mark :1\ndone\n"])
        oid = self.git("fast-import", "--quiet", "--force", "--done", "--cat-blob-fd=1", input=stream)
        self._heads[ref] = oid
        return oid

    def branch(self, name: str, at: str = "main") -> str:
        return self.ref(f"refs/heads/{name}", at)

    def tag(self, name: str, at: str = "main", *, annotated: bool = False) -> str:
        """A tag; the id of the commit, or of the tag object if annotated."""
        oid = self.id(at)
        if annotated:
            text = (
                f"object {oid}\ntype commit\ntag {name}\ntagger T <t@example.com> {EPOCH} +0000\n\n{name}\n"
            )
            oid = self.git("mktag", input=text.encode())
        return self.ref(f"refs/tags/{name}", oid)

    def pull(self, number: int, at: str) -> str:
        """`refs/pull/NUMBER/head`."""
        return self.ref(f"refs/pull/{number}/head", at)

    def ref(self, name: str, at: str) -> str:
        """Point a full ref name at a revision; the object's id."""
        oid = self.id(at)
        self.git("update-ref", name, oid)
        self._heads[name] = oid
        return oid

    def id(self, revision: str) -> str:
        """The full id of a revision, for example `main`, `v1^{}` or `main:package` (a folder's tree)."""
        if len(revision) == 40 and set(revision) <= set("0123456789abcdef"):
            return revision
        return self._heads.get(f"refs/heads/{revision}") or self.git("rev-parse", "--verify", revision)

    def tree(self, revision: str = "main", path: str = "") -> str:
        """The id of a commit's tree, or of the file or folder at a path."""
        return self.id(f"{self.id(revision)}:{path}")

    def configure(self, key: str, value: str) -> None:
        """Set a configuration value, for example `uploadpack.allowAnySHA1InWant`."""
        self.git("config", key, value)

    def copy(self, path: Path) -> Repo:
        """A mirror with the same objects and refs."""
        git("clone", "-q", "--mirror", str(self.path), str(path))
        return Repo(path, self._commits, dict(self._heads))


def git(*args: str, git_dir: Path | None = None, input: bytes | None = None) -> str:
    """git with no one's configuration and fixed dates; its output without the last newline."""
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC", "HOME": os.devnull}
    env.update(GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL=os.devnull, GIT_ATTR_NOSYSTEM="1")
    for who in ("AUTHOR", "COMMITTER"):
        env[f"GIT_{who}_NAME"], env[f"GIT_{who}_EMAIL"] = "A U Thor", "author@example.com"
        env[f"GIT_{who}_DATE"] = f"{EPOCH} +0000"
    if git_dir is not None:
        env["GIT_DIR"] = str(git_dir)
    done = subprocess.run(["git", *args], env=env, input=input, capture_output=True, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(
            done.returncode, ["git", *args], done.stdout, done.stderr.decode("utf-8", "replace")
        )
    return done.stdout.decode("utf-8", "surrogateescape").removesuffix("\n")


def _change(path: str, file: str | bytes | File | None) -> bytes:
    quoted = path.encode("utf-8", "surrogateescape").replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    quoted = b'"' + quoted.replace(b"\n", b"\\n") + b'"'
    if file is None:
        return b"D " + quoted + b"\n"
    if not isinstance(file, File):
        file = File(file)
    if file.mode == "160000":
        assert isinstance(file.data, str)
        return b"M 160000 " + file.data.encode() + b" " + quoted + b"\n"
    data = file.data.encode() if isinstance(file.data, str) else file.data
    return b"M %s inline %s\ndata %d\n%s\n" % (file.mode.encode(), quoted, len(data), data)


# -- somebody else's settings ----------------------------------------------------------------------------

HOSTILE_ATTRIBUTES = (
    "* text=auto eol=crlf ident\n*.bin filter=evil diff=evil merge=evil\n*.txt working-tree-encoding=UTF-16\n"
)
_HOSTILE_CONFIG = """
[core]
    autocrlf = true
    eol = crlf
    safecrlf = true
    fileMode = false
    quotePath = false
    abbrev = 5
    symlinks = false
    ignoreCase = true
    hooksPath = {folder}/template/hooks
    attributesFile = {folder}/attributes
    fsmonitor = {folder}/evil
    pager = {folder}/evil
    editor = {folder}/evil
    sparseCheckout = true
[diff]
    renames = copies
    algorithm = patience
    external = {folder}/evil
    noprefix = true
    mnemonicPrefix = true
[filter "evil"]
    clean = {folder}/evil
    smudge = {folder}/evil
    required = true
[merge]
    conflictStyle = diff3
    renames = false
    ff = only
[merge "evil"]
    driver = {folder}/evil
[init]
    templateDir = {folder}/template
    defaultObjectFormat = sha256
[alias]
    read-tree = !{folder}/evil
    fetch = !{folder}/evil
[apply]
    whitespace = fix
    ignoreWhitespace = change
[i18n]
    commitEncoding = ISO-8859-1
[commit]
    gpgSign = true
    template = /nonexistent
[user]
    name = Somebody Else
    email = else@example.com
[log]
    showSignature = true
[color]
    ui = always
[fetch]
    fsckObjects = true
    prune = true
    recurseSubmodules = true
[transfer]
    fsckObjects = true
[protocol]
    version = 0
[index]
    version = 4
[core]
    splitIndex = true
"""


def hostile_user(folder: Path) -> tuple[dict[str, str], Path]:
    """A user whose every setting would change ids or bytes, or run a program: environment, and what these write to."""
    marks, home, hooks = folder / "marks", folder / "home", folder / "template" / "hooks"
    for place in (marks, home / ".config" / "git", hooks):
        place.mkdir(parents=True, exist_ok=True)
    program = script(folder / "evil", f'echo "$0 $*" >>{marks}/ran\ncat')
    for name in ("post-checkout", "reference-transaction", "post-index-change", "fsmonitor-watchman"):
        shutil.copy(program, hooks / name)
    for place in (folder / "attributes", home / ".config/git/attributes"):
        place.write_text(HOSTILE_ATTRIBUTES + "* filter=evil\n")
    (home / ".config" / "git" / "ignore").write_text("*\n")
    for place in (home / ".gitconfig", folder / "system"):
        place.write_text(_HOSTILE_CONFIG.replace("{folder}", str(folder)))
    variables = {
        "HOME": home,
        "GIT_CONFIG_SYSTEM": folder / "system",
        "GIT_DIR": folder / "nowhere",
        "GIT_WORK_TREE": folder / "nowhere",
        "GIT_INDEX_FILE": folder / "nowhere" / "index",
        "GIT_OBJECT_DIRECTORY": folder / "nowhere",
        "GIT_COMMON_DIR": folder / "nowhere",
        "GIT_NAMESPACE": "evil",
        "GIT_SHALLOW_FILE": folder / "nowhere",
        "GIT_TEMPLATE_DIR": folder / "template",
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_EXTERNAL_DIFF": program,
        "GIT_PAGER": program,
        "GIT_TRACE": marks / "trace",
        "GIT_TRACE2_EVENT": marks / "trace2",
        "GIT_TRACE_CURL": marks / "curl",
        "GIT_ICASE_PATHSPECS": "1",
        "GIT_AUTHOR_DATE": "2001-01-01",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.autocrlf",
        "GIT_CONFIG_VALUE_0": "true",
        "GIT_CONFIG_PARAMETERS": "'core.eol=crlf'",
        "LC_ALL": "de_DE.UTF-8",
        "LANGUAGE": "de",
        "TZ": "Asia/Kolkata",
    }
    return {name: str(value) for name, value in variables.items()}, marks


# -- servers -------------------------------------------------------------------------------------------


@dataclass
class Daemon:
    """A running git daemon. `url(name)` for the repository `folder/name`; `requests` counts connections."""

    port: int
    requests: int = 0

    def url(self, name: str) -> str:
        return f"git://127.0.0.1:{self.port}/{name}"


@contextlib.contextmanager
def serve(folder: Path, *, v0: bool = False) -> Iterator[Daemon]:
    """`git daemon` with its default configuration for the repositories in `folder`.

    It runs in its inetd mode behind a socket of ours: the port is open at once and nobody else's.
    v0: an old server, one that has never heard of protocol version 2.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    daemon = Daemon(listener.getsockname()[1])
    running: list[subprocess.Popen[bytes]] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            daemon.requests += 1
            with connection:
                running.append(_inetd(connection, folder, v0))

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield daemon
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # wakes accept(); close() alone does not
        listener.close()
        thread.join()
        for process in running:
            process.kill()
            process.wait()


def _inetd(connection: socket.socket, folder: Path, v0: bool) -> subprocess.Popen[bytes]:
    command = ["git", "daemon", "--inetd", "--export-all", f"--base-path={folder}", "--timeout=60"]
    if v0:
        size = int(connection.recv(4, socket.MSG_WAITALL), 16)
        request = connection.recv(size - 4, socket.MSG_WAITALL).split(b"\0")[0]
        name = request.removeprefix(b"git-upload-pack ").decode().lstrip("/")
        command = ["git", "upload-pack", "--strict", "--timeout=60", str(folder / name)]
    return subprocess.Popen(
        command, env=_server_environment(), stdin=connection, stdout=connection, stderr=subprocess.DEVNULL
    )


def _server_environment() -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }


@dataclass
class HttpGit:
    """A running HTTP server for git, and how it misbehaves; change the fields while it runs.

    auth: "user:password" it demands. v0: it does not know protocol version 2.
    cut_after, cuts: the next `cuts` answers longer than `cut_after` bytes break off there.
    failures, status: the next `failures` requests are answered with `status`.
    stall_after: answers longer than this many bytes stop there and stay silent.
    spy: called at the start of each request, while the client waits.
    requests: "METHOD path" of each request. authorizations: their Authorization headers, where there is one.
    """

    port: int = 0
    auth: str | None = None
    v0: bool = False
    cut_after: int = 0
    cuts: int = 0
    failures: int = 0
    status: int = 503
    stall_after: int | None = None
    spy: Callable[[], object] | None = None
    requests: list[str] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _end: threading.Event = field(default_factory=threading.Event)

    def url(self, name: str, credentials: str = "") -> str:
        at = f"{credentials}@" if credentials else ""
        return f"http://{at}127.0.0.1:{self.port}/{name}"

    def _take(self, counter: str) -> bool:
        with self._lock:
            left: int = getattr(self, counter)
            setattr(self, counter, max(0, left - 1))
            return left > 0


def need_http() -> None:
    """Skip the test if this git was built without HTTP."""
    if not Path(git("--exec-path"), "git-remote-http").exists():
        pytest.skip("this git was built without HTTP")


@contextlib.contextmanager
def http_git(folder: Path, **settings: object) -> Iterator[HttpGit]:
    """`git http-backend` for the repositories in `folder`; `settings` are fields of HttpGit.

    Skips the test if this git was built without HTTP.
    """
    need_http()
    state = HttpGit(**settings)  # type: ignore[arg-type]
    handler = type("Handler", (_HttpGitHandler,), {"state": state, "folder": folder})
    with http_server(handler) as state.port:
        try:
            yield state
        finally:
            state._end.set()


class QuietHandler(BaseHTTPRequestHandler):
    """One that keeps connections open and writes nothing to the terminal."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def http_server(handler: type[QuietHandler]) -> Iterator[int]:
    """A server on 127.0.0.1 with these answers; its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _HttpGitHandler(QuietHandler):
    state: HttpGit
    folder: Path

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(body)

    def _answer(self, body: bytes) -> None:
        state = self.state
        parts = urlsplit(self.path)
        state.requests.append(f"{self.command} {parts.path}")
        if state.spy is not None:
            state.spy()
        given = self.headers.get("Authorization")
        if given:
            state.authorizations.append(given)
        if state._take("failures"):
            return self._send(state.status, [], b"broken\n")
        wanted = "Basic " + base64.b64encode((state.auth or "").encode()).decode()
        if state.auth is not None and given != wanted:
            return self._send(401, [("WWW-Authenticate", 'Basic realm="git"')], b"who are you?\n")
        return self._send(*self._backend(parts.path, parts.query, body))

    def _backend(self, path: str, query: str, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        env = _server_environment()
        env.update(
            GIT_PROJECT_ROOT=str(self.folder),
            GIT_HTTP_EXPORT_ALL="1",
            REQUEST_METHOD=self.command,
            PATH_INFO=unquote(path),
            QUERY_STRING=query,
            CONTENT_TYPE=self.headers.get("Content-Type", ""),
            CONTENT_LENGTH=str(len(body)),
            HTTP_CONTENT_ENCODING=self.headers.get("Content-Encoding", ""),
            REMOTE_ADDR="127.0.0.1",
        )
        if not self.state.v0 and "Git-Protocol" in self.headers:
            env["GIT_PROTOCOL"] = self.headers["Git-Protocol"]
        done = subprocess.run(["git", "http-backend"], env=env, input=body, capture_output=True, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = [tuple(line.split(": ", 1)) for line in head.decode("latin-1").split("\r\n") if line]
        status = next((int(v.split()[0]) for k, v in headers if k == "Status"), 200)
        return status, [(k, v) for k, v in headers if k != "Status"], content

    def _send(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        state = self.state
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        stall = state.stall_after is not None and len(content) > state.stall_after
        cut = not stall and state.cuts > 0 and len(content) > state.cut_after and state._take("cuts")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if stall:
                self.wfile.write(content[: state.stall_after])
                self.wfile.flush()
                state._end.wait()
            elif cut:
                self.wfile.write(content[: state.cut_after])
            else:
                self.wfile.write(content)
                return
        self.close_connection = True
