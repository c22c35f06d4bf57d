"""The page docs/troubleshooting.md, from the symptoms that a failed run is explained by and the known faults."""

from __future__ import annotations

import re
from collections.abc import Iterator

_NAME = re.compile(r"(?<![\w./-])([a-z_]+(?:\.\w+(?:-\w+)*)+)")

_INTRODUCTION = """\
# Troubleshooting

Written by `.ci/regenerate` from `npu_rl/training/monitor/symptoms.py` and `npu_rl/recipes/faults/catalogue/`.

If a command of npu-rl failed, start with its last lines: `where` names the file, key or option, `why` gives the
evidence, and `next` names the command or the edit that helps. The exit code says what kind of failure it is: 1 is an
invalid file, source, patch or run, 2 a wrong argument, and 3 a workspace that differs from its lock or something that
this machine lacks.

If a run failed, `npu-rl runs show RUN` prints the explanation that npu-rl has found in the logs, the alarms that were
raised, and what to do next. The logs themselves are in the run's folder, in `attempts/N/driver.log` and
`attempts/N/workers/`.

| what you see | where to look |
|---|---|
| a message in a log | [By message](#by-message), below |
| nothing fails, but results are wrong, or a run hangs without a message | [By behaviour](#by-behaviour), below |
| an alarm while a run goes on | [Alarms](training.md#while-it-runs) |
| a run that stands still | [When it hangs](training.md#when-it-hangs) |
| a checkpoint from which a run does not resume | [Recover by hand](training.md#recover-by-hand) |
| a host that lacks something | [`npu-rl doctor`](doctor.md) |
| a recipe or a plan that is refused | [The check](recipe.md#the-check) and [plan](plan.md) |
| a patch that does not apply | [Patches](patches.md#check-patches) |
| a workspace that differs from its lock | [Verify](concepts.md#verify-quick-and-deep) |

## By message

npu-rl looks for these messages when a run ends with an error, and reports the first that it finds in this order.
"""

_BEHAVIOUR = """
## By behaviour

These are the known faults of the upstreams that raise no error, or none that names the cause. `npu-rl faults` tells
which of them your stack has. Each name leads to the entry that gives the affected versions and what ends the fault.
"""

_KINDS = {
    "wrong result": "Results are wrong",
    "dies": "The run ends",
    "hangs": "The run hangs",
    "slow": "The run is slow",
}


def troubleshooting_page() -> str:
    """Return the page: messages by group, then what is seen of faults without a message."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    from npu_rl.recipes.faults.catalogue_files import read_catalogue
    from npu_rl.training.monitor.symptoms import SYMPTOM_GROUPS

    yield _INTRODUCTION.rstrip()
    for heading, symptoms in SYMPTOM_GROUPS.items():
        yield f"\n### {heading}"
        for symptom in symptoms:
            cause = symptom.cause.replace("{address}", "the host that the message names")
            yield f"\n```output\n{symptom.printed}\n```\n"
            yield f"{_coded(cause)} **Fix:** {_coded(symptom.hint)} (Source: {symptom.source})"
    yield _BEHAVIOUR.rstrip()
    faults = read_catalogue()
    for severity, heading in _KINDS.items():
        yield f"\n### {heading}\n"
        yield "| what you see | known fault |"
        yield "|---|---|"
        for fault in faults:
            if fault.severity == severity:
                yield f"| {_cell(fault.symptom)} | [{fault.id}](faults.md#{fault.id}) |"


def _coded(text: str) -> str:
    """Set keys, files and versions in code, as `actor.micro_batch`, unless they are already."""
    parts = text.split("`")
    return "`".join(part if number % 2 else _NAME.sub(r"`\1`", part) for number, part in enumerate(parts))


def _cell(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return text[:1].upper() + text[1:]
