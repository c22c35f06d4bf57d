"""The report of `npu-rl doctor`, with all its lines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from npu_rl.common.masking import Secrets, masked_data, masked_text
from npu_rl.training.host.describe_host import HostDescription
from npu_rl.training.host.device_lines import device_lines
from npu_rl.training.host.line import OK, RED, STATES, DoctorLine
from npu_rl.training.host.machines import MachineKind, machine_kind
from npu_rl.training.host.python_lines import python_lines
from npu_rl.training.host.stack_lines import gpu_stack_lines, stack_lines
from npu_rl.training.host.system_lines import system_lines
from npu_rl.training.host.wanted_host import WantedHost

_NPUS = ("a2", "a3", "950", "npu")


@dataclass(frozen=True)
class DoctorReport:
    """The findings of `npu-rl doctor`.

    Attributes:
        against: What the host was compared with.
        kind: a2, a3, 950, npu, cuda or cpu.
        kernel: Its version; empty if it is not known.
        lines: In the order in which a host is built up.
    """

    against: str
    kind: str
    kernel: str
    lines: tuple[DoctorLine, ...]

    @property
    def ok(self) -> bool:
        """Return whether no line needs fixing."""
        return not self.red

    @property
    def red(self) -> tuple[DoctorLine, ...]:
        """The lines that need fixing."""
        return tuple(line for line in self.lines if line.state == RED)

    def text(self) -> str:
        """Return the report as text for people and issues, problems first, with secrets masked."""
        counts = ", ".join(f"{sum(one.state == state for one in self.lines)} {state}" for state in STATES)
        rows = [f"npu-rl doctor: {self.against}; kernel {self.kernel or 'not known'}"]
        for state in STATES:
            rows += [row for line in self.lines if line.state == state for row in _rows(line)]
        return masked_text("\n".join([*rows, counts]) + "\n")


def examine_host(host: HostDescription, wanted: WantedHost, runs: Path | None = None) -> DoctorReport:
    """Compare a host with its requirements and those of its kind of machine.

    Args:
        runs: Folder of a run's record, whose disk matters.
    """
    npu = wanted.device == "npu" or (not wanted.device and host.kind in _NPUS)
    device = "npu" if npu else "cuda" if "cuda" in (host.kind, wanted.device) else "cpu"
    kind = _kind(host, wanted)
    lines = [*device_lines(host, wanted, kind, device)]
    lines += (
        stack_lines(host, wanted, kind) if npu else gpu_stack_lines(host, wanted) if device == "cuda" else []
    )
    lines += python_lines(host.python, wanted, kind, device)
    lines += system_lines(host, wanted, kind, device, runs)
    names = [("recipe", wanted.recipe), ("manifest", wanted.manifest)]
    against = ", ".join(f"{what} {name}" for what, name in names if name)
    known = Secrets.of(host.environ)
    shown = tuple(DoctorLine(**masked_data(asdict(line), known=known)) for line in lines)
    against = f"{against or 'no recipe and no manifest'}; {kind.title}"
    return DoctorReport(against, host.kind, host.facts["kernel"], shown)


def _kind(host: HostDescription, wanted: WantedHost) -> MachineKind:
    """Return the kind of machine to compare with: the detected one, or the wanted one if it can't be detected."""
    seen = host.kind in ("a2", "a3", "950", "cuda")
    wrong = wanted.device and wanted.device != "npu" and host.kind in _NPUS
    return machine_kind(host.kind if seen and not wrong else wanted.kind or host.kind)


def _rows(line: DoctorLine) -> list[str]:
    """Return a line's rows: one for each of its parts if it needs attention, else two."""
    parts = (("wanted", line.wanted), ("shown by", line.command), ("do", line.fix))
    rows = [f"{label}: {text}" for label, text in parts if text]
    if line.state == OK and rows:
        rows = ["; ".join(rows)]
    return [f"{line.state:<9} {line.what}: {line.found}", *(f"{'':<9}   {row}" for row in rows)]
