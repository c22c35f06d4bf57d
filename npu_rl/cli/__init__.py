"""The command line: parse, call, print. Heavy imports happen inside the commands."""

from __future__ import annotations

import errno
import os
import sys

REHEARSAL_LEVELS = ("imports", "layout", "train", "rollout", "all", "quick")
"""The values of --rehearse, as in rehearsal/level_names.py, which few commands import."""

_LIMIT = "It ran into a limit of this process (`ulimit -v`) or of this machine."


def program() -> None:
    """Run `main` as the process `npu-rl`, and end it without Python's own shutdown.

    During that shutdown Python restores the default signal handlers: a signal that arrived then would report a finished
    command as killed.
    """
    import gc

    gc.set_threshold(100_000)  # at 700 new objects, the walks through what imports make take 7% of a plan
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    import atexit

    atexit._run_exitfuncs()
    os._exit(code)


def main() -> None:
    """Run the command and exit with its code.

    Exit codes: 0 done, 1 failed, 2 usage, 3 the workspace or host is not as required; 130, 143 and 129: ended by
    SIGINT (Ctrl-C), SIGTERM or SIGHUP.
    """
    if not sys.flags.ignore_environment:  # as `isolate` starts it again
        from npu_rl.cli.isolation import isolate

        isolate()
    from npu_rl.cli import signals_and_streams as process

    process.end_at_once()
    process.prepare_streams()
    sys.excepthook = _unexpected
    from npu_rl.cli.app import app  # noqa: F401  nothing is begun while this is imported

    came: list[int] = []
    try:
        try:
            process.interrupt(came)
            code = _run()
        finally:
            process.end_at_once()
            if came:  # whatever it became on its way: RuntimeError, if it met the making of a class
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        code = 128 + (came[0] if came else 2)
        shown = sys.modules.get("npu_rl.cli.show")
        if shown is not None and (text := shown.after_interruption()):
            process.complain(text)
    if not process.flush():
        code = code or 1
    raise SystemExit(code)


def _run() -> int:
    """Run the command, and return its exit code."""
    from npu_rl.cli import signals_and_streams as process
    from npu_rl.cli.app import app
    from npu_rl.common.errors import NpuRlError

    try:
        app(with_level(sys.argv[1:]), prog_name="npu-rl")
    except SystemExit as end:  # the parser's way to end
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except NpuRlError as error:
        process.complain(str(error) + _log_of(error))
        return error.exit_code
    except BrokenPipeError:
        return 1
    except MemoryError:
        from npu_rl.common.errors import HostError

        process.complain(str(HostError("There is not enough memory", why=_LIMIT)))
        return HostError.exit_code
    except OSError as error:
        if process.flush():  # else it was that, and is told
            process.complain(_words(error))
        return 1
    return 0


def _log_of(error: BaseException) -> str:
    """Return where the git commands are logged, if one of them caused this error."""
    if not sys.modules.get("npu_rl.stack.git.command"):
        return ""
    from npu_rl.common.errors import SourceError
    from npu_rl.stack.git import command_log
    from npu_rl.stack.git.messages import GitError

    log, at = command_log.written(), error
    seen: set[int] = set()  # `raise error from error` makes an error its own cause
    while log is not None and at is not None and id(at) not in seen:
        if isinstance(at, (GitError, SourceError)):
            return f"\n  log:   {log}"
        seen.add(id(at))
        at = at.__cause__ or at.__context__  # type: ignore[assignment]
    return ""


def _words(error: OSError) -> str:
    """Return the system's reason and its subject; a removed current folder has no name to print."""
    name = error.filename
    if isinstance(error, FileNotFoundError) and not (isinstance(name, str) and os.path.isabs(name)):
        try:
            os.getcwd()
        except FileNotFoundError:
            from npu_rl.common.errors import HostError

            hint = "Go to another (cd), or name every path in full, as in --workspace /DIR"
            return str(HostError("The current folder does not exist any more", hint=hint))
    return (error.strerror or str(error)) + (f": {name}" if name else "")


def with_level(words: list[str]) -> list[str]:
    """Write `--rehearse LEVEL` as one word, without a level with `all`: the parser has no optional values."""
    written: list[str] = []
    for word in words:
        if written[-1:] == ["--rehearse"]:
            known = word in REHEARSAL_LEVELS
            written[-1] = f"--rehearse={word if known else 'all'}"
            if known:
                continue
        written.append(word)
    return [f"{word}=all" if word == "--rehearse" else word for word in written]


def _is_of_memory(error: BaseException) -> bool:
    unmapped = isinstance(error, ImportError) and "failed to map segment" in str(error)
    return unmapped or isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM


def _unexpected(kind: type[BaseException], error: BaseException, trace: object) -> None:
    from npu_rl.cli import signals_and_streams as process

    if _is_of_memory(error):
        # As HostError has it, while errors.py can't be imported.
        process.complain(f"There is not enough memory\n  why:   {_LIMIT}")
        return
    sys.__excepthook__(kind, error, trace)  # type: ignore[arg-type]
    message = "this is a bug in npu-rl. Please report it with the lines above"
    try:
        import traceback

        from npu_rl.stack.git import command_log

        log = command_log.note("".join(traceback.format_exception(error)))
    except Exception:  # noqa: BLE001  a log must not hide the error
        log = None
    process.complain(message + (f" and those of this command in {log}" if log else "") + ".")
