"""Long text in the user's pager on a terminal: PAGER, else less, as git does it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator


def page(text: str) -> bool:
    """Show a text in a pager; return whether it was shown. The text is untrusted unless its caller has escaped it.

    It is shown only if standard input and output are terminals and there is a pager; PAGER=cat or an empty PAGER turns
    this off.
    """
    argv = _pager()
    if argv is None:
        return False
    environment = {"LESS": "FRX", **os.environ}
    try:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, env=environment)
    except OSError:
        return False
    with _interrupts_are_the_pagers():
        with contextlib.suppress(BrokenPipeError):  # the user has seen enough
            process.communicate(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace"))
        process.wait()
    return True


def _pager() -> list[str] | None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "") in ("", "dumb"):
        return None
    named = os.environ.get("PAGER")
    if named is None:
        return ["less"] if shutil.which("less") else None
    try:
        argv = shlex.split(named)
    except ValueError:
        return None
    return argv if argv and argv != ["cat"] else None


@contextlib.contextmanager
def _interrupts_are_the_pagers() -> Iterator[None]:
    """Ignore Ctrl-C meanwhile: it reaches the pager, too, which uses it to end a search."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
