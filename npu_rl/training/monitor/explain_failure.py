"""Explanation of a failed run: the last exception in its logs, and known symptoms.

The driver's log has the lines of all workers, mixed and with Ray's prefix, so tracebacks are read per process. Only
the end of each log is read, which bounds memory.
"""

from __future__ import annotations

import itertools
import os
import re
import tempfile
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from npu_rl.common.bounded import NO_FILE, open_file
from npu_rl.common.host_facts import free_disk
from npu_rl.training.monitor.log_lines import speaker_and_message
from npu_rl.training.monitor.missing_module import Stack
from npu_rl.training.monitor.symptoms import CRASHED, NODE_MARKED_DEAD, Symptom, symptoms

_TAIL = 4 << 20  # bytes read from the end of a log
_CHUNK = 1 << 20
_MESSAGE_LINES = 15  # lines after an exception that may belong to its message
_EXCERPT = 14
_AROUND = 2000  # characters before and after a symptom that may name the dead worker
_LONGEST_SHOWN = 300  # characters of a shown line

_HEAD = "Traceback (most recent call last)"
_LOGGER = re.compile(r"\A(?:\[rank\d+\]:? |(?:ERROR|WARNING|INFO) [\d-]+ [\d:]+ \[?[^\]]+\] ?)")
_CHAINED = "The above exception was the direct cause of the following exception"
_DETAILS = 4  # indented lines of a message that are shown, as pydantic has them
_MISSING = re.compile(r"No module named '((?!_)\w+(?:\.(?!_)\w+)*)'")
_EXCEPTION = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:\((?P<of>[\w.]+)\))?(?::(?: (?P<message>.*))?)?"
)
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_INTERRUPTIONS = {"KeyboardInterrupt", "SystemExit", "Stopped"}
_ENGINE_DEAD = "EngineDeadError"
_SECONDARY = {
    *("RayActorError", "ActorDiedError", "ActorUnavailableError", "WorkerCrashedError", "RaySystemError"),
    *("NodeDiedError", "LocalRayletDiedError", "OwnerDiedError"),
    *("ObjectLostError", "ObjectReconstructionFailedError"),
    *("BrokenPipeError", "ConnectionResetError", "ConnectionRefusedError", "EOFError"),
    *("DistNetworkError", "DistBackendError", "CalledProcessError", "ChildFailedError", _ENGINE_DEAD),
}
# An exception that only points at another one, as vLLM's of its engine and of its workers do.
_POINTS_ABOVE = re.compile(r"\b(?:see|check)\b.{0,60}\b(?:above|root cause)", re.IGNORECASE)
# An HTTP client's error whose cause the server has: aiohttp's, httpx's, requests' and openai's words.
_SERVERS = re.compile(r"(?:ClientResponseError|HTTPStatusError|HTTPError|InternalServerError): .*\b50\d\b")
_QUOTED = 20  # characters of a message in another's, by which it is quoted
# Ray's words for a worker that died, and for one that its memory monitor has killed.
_DEAD_WORKER = re.compile(
    r"^\s*(?:class_name: (?P<class>\S+)\s+(?:actor_id: \S+\s+)?)?pid: (?P<pid>\d+)\s+(?:name: (?P<name>\S+)\s+)?"
    r"(?:namespace: \S+\s+)?ip: (?P<ip>\S+)",
    re.M,
)
_KILLED_WORKER = re.compile(r"\(IP: (?P<ip>[^,\s]+)[^\n]*?\bname=(?P<name>\w+:\d+)[^\n]*?\bpid=(?P<pid>\d+)")
_RAYLETS = re.compile(r"Worker IP address: (?P<ip>\S+)[^\n]*?Worker PID: (?P<pid>\d+)")
_TORCHRUNS = re.compile(
    r"host *: (?P<ip>\S+)\s+rank *: (?P<name>\d+)[^\n]*\s+exitcode *: -?\d+ \(pid: (?P<pid>\d+)\)"
)
_VLLMS = re.compile(r"(?:Worker|Engine core) proc (?P<name>\w+(?:-\d+)?) died unexpectedly")
_CRASHING = re.compile(
    r"\((?P<name>\w+) pid=(?P<pid>\d+)(?:, ip=(?P<ip>[^)\s]+))?\)(?:\x1b\[0m)? Fatal Python error"
)
_FULL = re.compile("No space left on device|Disk quota exceeded")
# Tracebacks of handled errors: Ray's search for a package of CANN, and finalizers that run late.
_HARMLESS = re.compile(
    r"Failed to detect NPU type|Exception ignored in|Exception in thread .*\(most likely raised"
)


@dataclass(frozen=True)
class Explanation:
    """The likely cause of a failure.

    Attributes:
        file, line: Where the log shows it; lines count from 1.
        source: The thread or source file of a known symptom, else "".
    """

    cause: str
    hint: str
    file: Path
    line: int
    excerpt: str
    source: str = ""


class _Role(Enum):
    """The cause of a failure that an exception indicates."""

    PRIMARY = "an error of its own"
    SECONDARY = "a report that another process failed"
    IGNORED = "an interruption, or an error that was handled"


@dataclass
class _Traceback:
    """A traceback in a log, with the exception that ends it."""

    path: Path
    lines: list[str]
    harmless: bool
    number: int = 0
    exception: str = ""
    place: str = ""  # file:line of its innermost frame
    role: _Role = _Role.IGNORED
    after: list[str] = field(default_factory=list)
    open: bool = True  # frames may still follow
    wraps: _Traceback | None = None  # the one that Python names as its direct cause

    def text(self) -> str:
        return "\n".join((*self.lines, *self.after))

    def raised(self) -> str:
        """Return the exception with the indented lines of its message, and where it was raised."""
        details = list(itertools.takewhile(lambda line: line[:1].isspace(), self.after[:_DETAILS]))
        return "\n".join((self.exception, *details, *([f"raised at {self.place}"] if self.place else [])))

    def is_quoted_by(self, other: _Traceback) -> bool:
        """Return whether another exception repeats this one's message, as one that wraps it does."""
        message = self.exception.partition(": ")[2].strip()
        return other is not self and len(message) >= _QUOTED and message in other.text()


@dataclass(frozen=True)
class _SymptomMatch:
    """The last occurrence of a known symptom in a log, and the lines from there on."""

    symptom: Symptom
    match: re.Match[str]
    path: Path
    line: int
    text: str
    around: str
    at: int  # where the occurrence is in `around`

    @property
    def cause(self) -> str:
        return self.symptom.cause_in(self.match)

    def explanation(self, one_machine: bool, excerpt: str, more: str) -> Explanation:
        symptom = self.symptom
        cause = symptom.cause_in(self.match, one_machine=one_machine) + more
        hint = symptom.fix_for(one_machine=one_machine) + _free_space(symptom, self.path)
        return Explanation(cause, hint, self.path, self.line, excerpt, symptom.source)


def explain(
    logs: list[Path], code: int | None = None, *, one_machine: bool = False, stack: Stack | None = None
) -> Explanation | None:
    """Find the likely cause of a failure; None if the logs do not show it.

    Args:
        logs: The driver's first, then the workers'; missing files are skipped.
        code: The driver's exit status, for a driver that was killed without an error message.
        one_machine: Whether the run has one node, of which there is no other to look at.
        stack: The run's, in which a module that is missing is looked up.
    """
    logs = [path for path in logs if path.is_file()]
    blocks = [block for path in logs for block in _tracebacks(path)]
    reports = [block for block in blocks if block.role is _Role.SECONDARY]
    errors = [block for block in blocks if block.role is _Role.PRIMARY]
    if any(_ENGINE_DEAD in block.exception for block in reports):
        errors = [block for block in errors if not _SERVERS.search(block.exception)]
    cause = _first_cause(errors, reports)
    if cause:
        return _explain_traceback(cause, logs, one_machine, stack)
    sign = _first_symptom(logs)
    if sign:
        return sign.explanation(one_machine, sign.text, _named_worker(sign.around, sign.at))
    if reports:
        first = next(block for block in reversed(reports) if block.path == reports[0].path)
        return _explain_traceback(first, [], one_machine)
    return _explain_signal(logs, code)


def _first_cause(errors: list[_Traceback], reports: list[_Traceback]) -> _Traceback | None:
    """Return the error that explains the others: the first that a later one or a report quotes, or else the last one.

    The driver's log comes first, and errors of its own before those of ranks that waited for another.
    """
    own = [block for block in errors if not _of_others(block)] or errors
    if not own:
        return None
    here = [block for block in own if block.path == own[0].path]
    quoting = [here[-1], *reports]
    quoted = (block for block in own if any(block.is_quoted_by(other) for other in quoting))
    return next(quoted, here[-1])


def _of_others(block: _Traceback) -> bool:
    known, _ = _known(block.text())
    return known is not None and known.of_others


def _known(text: str) -> tuple[Symptom | None, re.Match[str] | None]:
    """Return the most specific symptom of a text, and where it has it."""
    matches = ((symptom, symptom.pattern.search(text)) for symptom in symptoms())
    return next(((symptom, match) for symptom, match in matches if match), (None, None))


def _named_worker(text: str, at: int = 0) -> str:
    """Return a line that names the dead worker by its name in the trainer, node and process: that nearest to `at`."""
    forms = (_DEAD_WORKER, _KILLED_WORKER, _RAYLETS, _TORCHRUNS, _VLLMS, _CRASHING)
    matches = [match for form in forms for match in form.finditer(text)]
    if not matches:
        return ""
    parts = min(matches, key=lambda match: max(match.start() - at, at - match.end())).groupdict()
    actor = (parts.get("class") or "").rpartition(".")[2]
    name = parts.get("name") or actor or "a worker"
    if actor and (rank := re.search(rf"{re.escape(actor)}_\d+:\d+$", name)):
        name = rank[0]  # kQz3JpWorkerDict_0:3 without verl's random prefix
    name = f"rank {name}" if name.isdecimal() else name
    where = f", process {parts['pid']}" if "pid" in parts else ""
    where += f" on {parts['ip']}" if parts.get("ip") else ""
    return f"\nIt was {name}{where}."


def last_lines(log: Path, count: int = 12) -> list[str]:
    """Return the last lines of a log as text, without Ray's prefixes; empty if the log is missing or empty."""
    _, data = _read_end(log)
    messages = (speaker_and_message(_last_state(raw))[1].rstrip() for raw in data.split(b"\n")[-4 * count :])
    return [message[:_LONGEST_SHOWN] for message in messages if message][-count:]


def _last_state(raw: bytes) -> str:
    """Return a line as text; of a progress bar the last state."""
    return raw.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")


def _explain_traceback(
    block: _Traceback, logs: list[Path], one_machine: bool, stack: Stack | None = None
) -> Explanation:
    raised = block.raised()
    excerpt = "\n".join(block.lines[-_EXCERPT:])
    text = block.text()
    known, match = _known(text)
    if known and known.of_others and (dead := _first_symptom(logs, _deaths())):
        return dead.explanation(one_machine, excerpt, f"{_named_worker(dead.around, dead.at)}\n{raised}")
    missing = _MISSING.search(block.exception)
    if missing and stack and (known is None or known.pattern.search("No module named 'torch_npu'")):
        cause, hint = stack.look_up(missing[1])
        return Explanation(f"{cause}\n{raised}", hint, block.path, block.number, excerpt)
    if known and match:
        cause = f"{known.cause_in(match, one_machine=one_machine)}{_named_worker(text)}\n{raised}"
        hint = known.fix_for(one_machine=one_machine) + _free_space(known, block.path)
        return Explanation(cause, hint, block.path, block.number, excerpt, known.source)
    hint, source = "Read the log upwards from that line.", ""
    sign = _first_symptom(logs)
    if sign:
        fix = sign.symptom.fix_for(one_machine=one_machine)
        hint += f"\n{sign.path.name}:{sign.line} may be related: {sign.cause} {fix}"
        source = sign.symptom.source
    return Explanation(raised + _named_worker(text), hint, block.path, block.number, excerpt, source)


def _deaths() -> tuple[Symptom, ...]:
    """Return the symptoms that explain what other ranks raise: of a crash, and of a node."""
    patterns = (CRASHED.pattern, NODE_MARKED_DEAD.pattern)
    return tuple(one for one in symptoms() if one.pattern.pattern in patterns)


def _free_space(symptom: Symptom, log: Path) -> str:
    """Return a line with the free space of the places that a full disk may be."""
    if not _FULL.search(symptom.sample):
        return ""
    places = (str(log.parent), tempfile.gettempdir(), "/dev/shm")
    free = ((place, free_disk(Path(place))) for place in places)
    return "\nFree now: " + ", ".join(
        f"{size / 1e9:.1f} GB in {place}" for place, size in free if size is not None
    )


def _first_symptom(logs: list[Path], among: tuple[Symptom, ...] | None = None) -> _SymptomMatch | None:
    """Return the most specific known symptom in the logs. The driver's log has precedence over workers' logs."""
    among = symptoms() if among is None else among
    found: _SymptomMatch | None = None
    better = len(among)
    for path in logs:
        first, data = _read_end(path)
        text = data.decode("utf-8", "replace")
        for rank, symptom in enumerate(among[:better]):
            last = deque(symptom.pattern.finditer(text), maxlen=1)
            if last:
                begin = text.rfind("\n", 0, last[0].start()) + 1
                end = text.find("\n", last[0].end())
                line = text[begin : end if end >= 0 else len(text)]
                number = first + text.count("\n", 0, begin)
                shown = speaker_and_message(line)[1][:500]
                before = max(begin - _AROUND, 0)
                around = text[before : last[0].end() + _AROUND]
                at = last[0].start() - before
                found = _SymptomMatch(symptom, last[0], path, number, shown, around, at)
                better = rank
                break
    return found


def _explain_signal(logs: list[Path], code: int | None) -> Explanation | None:
    if code is None or code >= 0 or not logs:
        return None
    cause = f"The driver was killed by signal {-code} and logged no error."
    if code == -9:
        cause += " Unless a user sent it, the kernel did, because host memory ran out."
    return Explanation(cause, "Check `dmesg` for the OOM killer, and the host's memory.", logs[0], 1, "")


# -- reading a log -------------------------------------------------------------------------------------


def _tracebacks(path: Path) -> list[_Traceback]:
    """Return the complete tracebacks at the end of a log, in order."""
    number, data = _read_end(path)
    if _HEAD.encode() not in data:
        return []
    blocks: list[_Traceback] = []
    open_tracebacks: dict[str, _Traceback] = {}
    before: dict[str, str] = {}
    for raw in data.split(b"\n"):
        speaker, text = speaker_and_message(_last_state(raw))
        if logged := _LOGGER.match(text):
            speaker, text = f"{speaker} {logged[0][:8]}", text[logged.end() :]
        if text.lstrip(" |+").startswith(_HEAD):
            inner = open_tracebacks.get(speaker)
            chained = inner is not None and any(line.startswith(_CHAINED) for line in inner.after[-3:])
            harmless = bool(_HARMLESS.search(before.get(speaker, "")))
            block = _Traceback(path, [text], harmless, wraps=inner if chained else None)
            open_tracebacks[speaker] = block
            blocks.append(block)
        elif speaker in open_tracebacks and not _take_line(open_tracebacks[speaker], number, text):
            del open_tracebacks[speaker]
        before[speaker] = text
        number += 1
    return [block for block in blocks if block.exception]


def _take_line(block: _Traceback, number: int, text: str) -> bool:
    """Add a line of the same process to a traceback. Returns False if the traceback is complete."""
    if not block.open and _FRAME.match(text):
        block.open = True  # Ray puts the frames of the other process after its own exception
        block.lines += block.after
        block.after.clear()
    if not block.open:
        block.after.append(text)
        return len(block.after) < _MESSAGE_LINES
    found = None if not text or text[0].isspace() else _EXCEPTION.fullmatch(text)
    if found is None and text and not text[0].isspace():
        return False
    block.lines.append(text)
    if found is not None:
        block.open = False
        if block.role is _Role.PRIMARY and any(line.startswith(_CHAINED) for line in block.lines):
            return True  # the first of a chain is the cause of the others
        block.exception, block.number = text[:1000], number
        frames = [frame for line in block.lines if (frame := _FRAME.match(line))]
        block.place = f"{frames[-1]['file']}:{frames[-1]['line']}" if frames else ""
        block.role = _Role.IGNORED if block.harmless else _role_of(found)
        wraps = block.wraps is not None and block.wraps.role is not _Role.IGNORED
        if block.role is _Role.PRIMARY and (wraps or _POINTS_ABOVE.search(text)):
            block.role = _Role.SECONDARY
    return True


def _role_of(found: re.Match[str]) -> _Role:
    names = {(found[group] or "").rpartition(".")[2] for group in ("name", "of")}
    if names & _INTERRUPTIONS:
        return _Role.IGNORED
    return _Role.SECONDARY if names & _SECONDARY else _Role.PRIMARY


def _read_end(path: Path) -> tuple[int, bytes]:
    """Return the number of the first complete line in a log's last 4 MiB, and the bytes from there on."""
    try:
        opened = open_file(path)
    except OSError as error:
        if error.errno in NO_FILE:
            return 1, b""  # what stands there is no log
        raise
    with opened as file:
        size = file.seek(0, os.SEEK_END)
        skip = max(size - _TAIL, 0)
        file.seek(0)
        number, left = 1, skip
        while left > 0 and (chunk := file.read(min(_CHUNK, left))):
            number += chunk.count(b"\n")
            left -= len(chunk)
        data = file.read(_TAIL)
    if skip:
        _, _, data = data.partition(b"\n")  # a part of a line
        number += 1
    return number, data
