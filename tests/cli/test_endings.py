"""However a command ends, it ends with a documented exit code, and nothing is printed that only its authors read."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.cli.conftest import Installed, bare_env
from tests.support import clean_env, command_server, run_program
from tests.workspace.stack import Stack

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
SHOTS = int(os.environ.get("NPU_RL_SHOTS") or 8)

LOOKING = [
    ["verify"],
    ["manifests", "list"],
    ["--version"],
    ["--help"],
]


def words(command: list[str], paths: WorkspacePaths) -> list[str]:
    looks_at_it = command[0] in ("verify", "status") and "--help" not in command
    return [*command, *(["-w", str(paths.root)] if looks_at_it else [])]


# -- signals -------------------------------------------------------------------------------------------


def _catches_signals(pid: int) -> bool:
    """Whether the process has become Python and has our handlers: SIGTERM gets the last."""
    place = Path("/proc", str(pid))
    caught = (place / "status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.second
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="how far a process is, /proc tells")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_command_quietly_from_our_first_line_on(
    installed: Installed, template: WorkspacePaths, tmp_path: Path, number: signal.Signals
) -> None:
    """At random moments, from the first at which a line of ours has run to the end. Earlier ones meet the shell or
    Python itself, which end by the signal."""
    chance = random.Random(f"{number}")
    seen = []
    for _ in range(SHOTS):
        with subprocess.Popen(
            [installed.program, "verify", "-w", template.root],
            env=bare_env(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            while process.poll() is None and not _catches_signals(process.pid):
                pass
            time.sleep(chance.random() ** 2 * 0.15)
            process.send_signal(number)
            _, errors = process.communicate(timeout=30)
        seen.append(process.returncode)
        assert errors == ""
    assert set(seen) <= {128 + number, 0}
    assert 128 + number in seen


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("ignored", [False, True])
def test_a_signal_while_a_command_waits(
    installed: Installed,
    stack: Stack,
    paths: WorkspacePaths,
    tmp_path: Path,
    number: signal.Signals,
    ignored: bool,
) -> None:
    """One that the caller ignores stays ignored, as nohup does it with SIGHUP."""
    env = {k: v for k, v in stack.env.items() if k != "PYTHONPATH"}
    command = [installed.program, "setup", "-m", stack.new, "-w", paths.root]
    trap = f"trap '' {number.name.removeprefix('SIG')};" if ignored else ""
    with FileLock(paths.hidden / "busy.lock") as lock:
        with subprocess.Popen(
            ["sh", "-c", f'{trap} exec "$@"', "sh", *command],
            env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stderr is not None
            assert "waiting for it" in process.stderr.readline()
            process.send_signal(number)
            if ignored:
                lock.release()
            try:
                _, errors = process.communicate(timeout=60)
            finally:
                process.kill()  # of one that ended, nothing
    if ignored:
        assert process.returncode == 0, errors
    else:
        said = "npu-rl: Stopped; the same command continues with what it has fetched.\n"
        assert (process.returncode, errors) == (128 + number, said)


@pytest.mark.parametrize("number", SIGNALS)
def test_an_interruption_that_became_another_error(tmp_path: Path, number: signal.Signals) -> None:
    """Until Python 3.12 RuntimeError is raised where a class is made; a handler of errors may raise its own."""
    code = (
        "import os\nimport npu_rl.cli as cli\n"
        "class Field:\n"
        f"    def __set_name__(self, owner, name): os.kill(os.getpid(), {number})\n"
        "def run():\n"
        "    try: type('C', (), {'field': Field()})\n"
        "    except BaseException: raise ValueError('mine')\n"
        "cli._run = run\ncli.main()\n"
    )
    done = run_program([sys.executable, "-c", code], env=clean_env(tmp_path))
    assert (done.returncode, done.stderr) == (128 + number, "")


@pytest.mark.parametrize("number", SIGNALS)
def test_an_interruption_amid_a_finalizer(tmp_path: Path, number: signal.Signals) -> None:
    """What a finalizer raises goes no further, and Python would print it; the command still ends, and at once."""
    code = (
        "import os, time\nimport npu_rl.cli as cli\n"
        "class Last:\n"
        f"    def __del__(self): os.kill(os.getpid(), {number})\n"
        "def run():\n"
        "    Last()\n"
        "    time.sleep(60)\n"
        "cli._run = run\ncli.main()\n"
    )
    done = run_program([sys.executable, "-c", code], env=clean_env(tmp_path), timeout=30)
    assert (done.returncode, done.stderr) == (128 + number, "")


# -- standard streams ----------------------------------------------------------------------------------


def writing_to(path: str, args: list[str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """A command whose standard output is a file, or a pipe without a reader."""
    output = ["tests.command_server:send_output", path]
    return command_server().run(args, clean_env(tmp_path), str(tmp_path), 60, output)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_a_full_disk_is_told(template: WorkspacePaths, tmp_path: Path, command: list[str]) -> None:
    done = writing_to("/dev/full", words(command, template), tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"npu-rl: {os.strerror(errno.ENOSPC)}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_a_reader_that_goes_away_is_no_news(
    template: WorkspacePaths, tmp_path: Path, command: list[str]
) -> None:
    done = writing_to("", words(command, template), tmp_path)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_changes_no_verdict(
    installed: Installed, paths: WorkspacePaths, tmp_path: Path, closed: str
) -> None:
    def ended(*args: str | Path) -> subprocess.CompletedProcess[str]:
        return run_program(
            ["sh", "-c", f'exec "$@" {closed}', "sh", installed.program, *args], env=bare_env(tmp_path)
        )

    assert (ended("verify", "-w", paths.root).returncode, ended("--version").returncode) == (0, 0)
    (paths.code / "stray.py").touch()
    assert ended("verify", "-w", paths.root).returncode == 3
    nowhere = ended("verify", "--json", "-w", tmp_path / "nowhere")
    assert (nowhere.returncode, nowhere.stdout) == (
        3,
        "",
    )  # what is for people does not end up in the document
    assert ended("no-such-command").returncode == 2


# -- the current folder --------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["npu-rl", "python -m npu_rl"])
def test_a_current_folder_that_is_gone(
    installed: Installed, stack: Stack, template: WorkspacePaths, tmp_path: Path, program: str
) -> None:
    """Commands that don't need it work; the others say so."""
    start = [installed.program.with_name("python"), "-m", "npu_rl"] if " " in program else [installed.program]
    env = {k: v for k, v in stack.env.items() if k != "PYTHONPATH"}

    def ended(*args: str | Path) -> tuple[int, str]:
        gone = tmp_path / "gone"
        gone.mkdir()
        words = ["bash", "-c", 'rmdir "$PWD" && exec "$@"', "bash", *start, *args]
        done = run_program(words, env=env, cwd=gone)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stderr

    for needless in (["verify", "-w", template.root], ["recipes", "show", "quickstart"]):
        assert ended(*needless)[0] == 0, needless
    for needing in (["verify"], ["setup", "-m", stack.old], ["recipes", "copy", "quickstart"]):
        code, errors = ended(*needing)
        assert code == 1 and "The current folder does not exist any more" in errors


@pytest.mark.parametrize("number", SIGNALS)
def test_an_interruption_has_the_number_of_its_signal(tmp_path: Path, number: signal.Signals) -> None:
    """What records an interruption, as `train` in end.json, records the exit code of the command."""
    code = (
        "import os\nfrom npu_rl.cli import signals_and_streams\nsignals_and_streams.interrupt([])\n"
        f"try: os.kill(os.getpid(), {number})\n"
        "except KeyboardInterrupt as interrupt: print(*interrupt.args)\n"
    )
    done = run_program([sys.executable, "-c", code], env=clean_env(tmp_path))
    assert done.stdout == f"{int(number)}\n"
