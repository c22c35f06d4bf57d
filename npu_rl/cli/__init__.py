"""The command line: parse, call, print. Heavy imports wait inside the commands."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run npu-rl. Exit codes: 0 done, 1 failed, 2 usage, 3 the workspace or host is not what it should be."""
    _leave_import_path()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by the caller
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # file names may be no text
    sys.excepthook = _unexpected
    signal.signal(signal.SIGTERM, _interrupted)
    from npu_rl.cli.app import app
    from npu_rl.errors import NpuRlError

    sys.argv[1:] = _with_level(sys.argv[1:])
    try:
        app()
    except NpuRlError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("stopped. Nothing is half done; run the same command to go on.", 130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe went away: not our failure, and nobody to tell
        raise SystemExit(1) from None
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        _fail(f"{error.strerror or error}{place}", 1)


def _with_level(words: list[str]) -> list[str]:
    """`--rehearse` without a level means all of them: an option's value that may be left out, which the parser
    can't express."""
    levels = (
        "imports",
        "layout",
        "train",
        "rollout",
        "all",
    )  # rehearse.LEVELS, which is costly to import here
    following = [*words[1:], ""]
    return [
        "--rehearse=all" if word == "--rehearse" and after not in levels else word
        for word, after in zip(words, following, strict=False)
    ]


def _leave_import_path() -> None:
    """Import nothing from PYTHONPATH or the current folder.

    In an activated workspace both lead into the tree that is to be judged, and a stray `random.py` in it
    would run inside the command that is to find it.
    """
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    foreign = {os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    foreign.add(os.getcwd())
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) == home or os.path.abspath(p) not in foreign]


def _interrupted(_number: int, _frame: object) -> None:
    """A batch system's polite stop ends like Ctrl-C: what was staged is removed."""
    raise KeyboardInterrupt


def _fail(message: str, code: int) -> None:
    sys.stdout.flush()
    print(f"npu-rl: {message}", file=sys.stderr)
    raise SystemExit(code)


def _unexpected(kind: type[BaseException], error: BaseException, trace: object) -> None:
    sys.__excepthook__(kind, error, trace)  # type: ignore[arg-type]
    print("npu-rl: this is a bug in npu-rl. Please report it with the lines above.", file=sys.stderr)
