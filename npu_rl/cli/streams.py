"""Standard input, output and error; if closed, broken or on a full disk, they change the exit code to 1 at most."""

from __future__ import annotations

import contextlib
import errno
import os
import sys


def prepare() -> None:
    """Open /dev/null for the streams that the caller closed.

    Otherwise the next opened file would get their number, and any library's output.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        stream = getattr(sys, name)
        if stream is None:
            _to_null(number)
            opened = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115  for the whole process
            setattr(sys, name, opened)
        elif mode == "w":
            stream.reconfigure(errors="backslashreplace")  # file names may be no text


def complain(message: str) -> None:
    """Print the reason of a failed command on standard error."""
    from npu_rl.cli.colours import coloured
    from npu_rl.cli.folding import fold_long_lines
    from npu_rl.common.printable import printable

    flush()
    with contextlib.suppress(OSError):  # nobody can be told
        sys.stderr.write(coloured(fold_long_lines(f"npu-rl: {printable(message)}\n", sys.stderr), sys.stderr))
        sys.stderr.flush()


def flush() -> bool:
    """Flush the output, and return whether all of it was written.

    A stream that fails is reported and redirected to /dev/null, so that Python doesn't fail on it again at exit, with
    exit code 120. A closed pipe isn't reported: its reader needs no more.
    """
    whole = True
    for name, stream in ("standard output", sys.__stdout__), ("standard error", sys.__stderr__):
        if stream is None:  # was closed by the caller
            continue
        try:
            stream.flush()
        except OSError as error:
            whole = False
            _to_null(stream.fileno())
            if error.errno != errno.EPIPE:
                complain(f"{error.strerror}: {name}")
    return whole


def _to_null(number: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null == number:
        os.set_inheritable(null, True)
    else:
        os.dup2(null, number)
        os.close(null)
