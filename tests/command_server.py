"""`npu-rl` as a process of its own whose imports are made already: a fork of a server that has made them.

Imports are most of what a command costs, 0.1 to 0.4 s, and the tests start some thousand commands. The server itself
runs nothing of npu-rl. Each command is a child with streams, folder, environment and arguments of its own.
`tests.support.run_cli` uses it.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

if __name__ == "__main__":
    del sys.path[0]  # this folder, which no command knows

import npu_rl

# Read once, at a start or an import: a command for which one of them is another starts from nothing.
READ_AT_START = ("LANG", "LC_", "LD_", "MALLOC_", "PYTHON", "TYPER_", "_TYPER_")
READ_AT_START += ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TERMINAL_WIDTH")
# What no command imports: files of other interpreters, and the entry point.
APART = [
    f"npu_rl.{name}"
    for name in (
        "__main__",
        "runtime",
        "training.injected",
        "rehearsal.injected",
        "rehearsal.standins",
        "weights.tensors",
    )
]
HEAD = 12  # digits of the size of a request
CLIENT = """\
import fcntl, json, os, socket, sys
call = {{"args": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "first": []}}
request = json.dumps(call).encode()
control, theirs = socket.socketpair()
with open(__file__) as own, socket.socket(fileno=os.dup({number})) as server:
    fcntl.flock(own, fcntl.LOCK_EX)  # both sides of a pipe begin at once
    socket.send_fds(server, [b"%*d" % ({head}, len(request))], [theirs.fileno(), 1, 2])
    server.sendall(request)
theirs.close()
said = b"".join(iter(lambda: control.recv(100), b""))
sys.exit(int(said.split()[1]) % 256)
"""


class Server:
    """A running server of commands in whose environment Python starts as in `env`."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._sending = threading.Lock()
        self._ours, theirs = socket.socketpair()
        with theirs:
            # Streams as the commands have them: Python settles at its start how it writes to them.
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env={"PATH": os.environ["PATH"], **read_at_start(env)},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()], cwd="/",
            )  # fmt: skip

    def run(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        timeout: float,
        first: Sequence[object] = (),
        kill: Callable[[int], object] = lambda pid: os.kill(pid, signal.SIGKILL),
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, as `subprocess.run` does. Raises TimeoutExpired after it was ended by `kill`.

        first: "MODULE:FUNCTION" and arguments of what its process calls before anything of npu-rl.
        """
        request = json.dumps({"args": args, "env": dict(env), "cwd": cwd, "first": first}).encode()
        control, theirs = socket.socketpair()
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        with theirs, control, open(out, "rb", 0), open(err, "rb", 0):
            with open(out_end, "wb", 0), open(err_end, "wb", 0):
                ends = [theirs.fileno(), out_end, err_end]
                with self._sending:
                    socket.send_fds(self._ours, [b"%*d" % (HEAD, len(request))], ends)
                    self._ours.sendall(request)
            theirs.close()
            came = {number: bytearray() for number in (control.fileno(), out, err)}
            in_time = _read(came, time.monotonic() + timeout)
            words = came[control.fileno()].split()
            if not in_time:
                if len(words) == 1:
                    kill(int(words[0]))
                    control.recv(100)  # it has ended
                raise subprocess.TimeoutExpired(
                    ["npu-rl", *args], timeout, bytes(came[out]), bytes(came[err])
                )
            assert len(words) == 2, "the server of commands has ended"
            return subprocess.CompletedProcess(
                ["npu-rl", *args], int(words[1]), _text(came[out]), _text(came[err])
            )

    def program(self) -> tuple[str, int]:
        """The text of a program `npu-rl` that has the server run it, and the handle that its process has to inherit."""
        return CLIENT.format(number=self._ours.fileno(), head=HEAD), self._ours.fileno()

    def stop(self) -> None:
        self._ours.close()
        self._process.communicate()


def read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python, its loader and what we import read only once."""
    return {name: value for name, value in env.items() if name.startswith(READ_AT_START)}


def send_output(path: str) -> None:
    """For `first`: standard output becomes this file; "" is a pipe without a reader."""
    if path:
        number = os.open(path, os.O_WRONLY)
    else:
        reader, number = os.pipe()
        os.close(reader)
    os.dup2(number, 1)
    os.close(number)


def _read(came: Mapping[int, bytearray], deadline: float) -> bool:
    """Read until nobody can write any more (True), or it is too late."""
    with selectors.DefaultSelector() as selector:
        for number in came:
            selector.register(number, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return False
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                came[key.fd].extend(data)
                if not data:
                    selector.unregister(key.fd)
    return True


def _text(data: bytes) -> str:
    text = data.decode("utf-8", "surrogateescape")
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as text=True has it


# -- the server ----------------------------------------------------------------------------------------


def main() -> None:
    """Serve until the tests are gone. In each child: be the command."""
    for name in _modules(npu_rl.__path__[0], "npu_rl."):
        importlib.import_module(name)
    _compose_in_process()
    gc.freeze()  # else a walk through all of this in a child copies it
    command = _serve(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(command["cwd"])
    os.environ.clear()
    os.environ.update(command["env"])
    time.tzset()
    tempfile.tempdir = None
    if command["first"]:
        name, *arguments = command["first"]
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)(*arguments)
    sys.argv[:] = [os.path.join(npu_rl.__path__[0], "__main__.py"), *command["args"]]
    from npu_rl.cli import program

    program()


def _compose_in_process() -> None:
    """Give the commands tests/hydra_in_process.py, which is not on the path of this process."""
    place = os.path.join(os.path.dirname(__file__), "hydra_in_process.py")
    spec = importlib.util.spec_from_file_location("hydra_in_process", place)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install()


def _modules(folder: str, prefix: str) -> Iterator[str]:
    """The names of all modules in a package but those apart, which are not imported to find them."""
    for module in pkgutil.iter_modules([folder], prefix):
        if module.name not in APART:
            yield module.name
            if module.ispkg:
                yield from _modules(os.path.join(folder, module.name.removeprefix(prefix)), f"{module.name}.")


def _serve(place: socket.socket) -> dict[str, Any]:
    """Fork for each request; its control socket is told the process id, then the exit status. The child returns."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end the server
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    controls: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        for readable in (place.fileno(), woken):
            selector.register(readable, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if woken in ready:
                os.read(woken, 4096)
                for pid, control in list(controls.items()):
                    ended, status = os.waitpid(pid, os.WNOHANG)
                    if ended:
                        os.write(control, b"%d" % os.waitstatus_to_exitcode(status))
                        os.close(controls.pop(pid))
            if place.fileno() not in ready:
                continue
            head, streams, _, _ = socket.recv_fds(place, HEAD, 3)
            if not head:
                os._exit(0)
            with place.dup().makefile("rb", 0) as rest:
                request = bytearray()
                while len(request) < int(head):
                    request += rest.read(int(head) - len(request))
            pid = os.fork()
            if not pid:
                break
            for number in streams[1:]:
                os.close(number)
            controls[pid] = streams[0]
            os.write(streams[0], b"%d " % pid)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, usual)
    for number, stream in enumerate(streams[1:], 1):
        os.dup2(stream, number)
    place.close()
    for number in (woken, wake, *streams, *controls.values()):
        os.close(number)
    return dict(json.loads(request))


if __name__ == "__main__":
    main()
