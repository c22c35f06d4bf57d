"""The documentation page on known faults, sorted by symptom. `.ci/regenerate` writes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from npu_rl.recipes.faults.fault import SEVERITIES, Ending, KnownFault

_HEADINGS = {
    "wrong result": "Wrong results",
    "dies": "Runs that die",
    "hangs": "Runs that hang",
    "slow": "Slow runs",
    "latent": "Latent faults",
}
_INTRODUCTION = """\
# Known faults

Written by `.ci/regenerate` from `npu_rl/recipes/faults/catalogue/`.

These are places where the upstreams of the bundled stacks compute something wrong, end a run or let it hang, without
a message that names the cause. Each fault has a witness: a short script that executes functions of the tree on a CPU,
with stand-ins for what only an NPU has. It shows the fault in those functions; it does not show a training. Figures
marked "witness" are those that the script printed for one tree. What a fault does to the metrics of a run was not
measured unless a figure says so, and nothing was measured on an NPU or a GPU.

`npu-rl faults` searches the files of a workspace for the text of the faulty code and of each known fix, whatever
version the tree claims to be. It misses a fix that is written in other words; `npu-rl faults --run` executes the
witnesses and reports where they differ. npu-rl's extra `faults` installs the packages that they import. To run a
witness without npu-rl, start it in the folder that has verl, vLLM and the others, with the variables that its entry
names: `NPU_RL_STANDINS=cpu PYTHONPATH=STAND-INS:. python WITNESS`. The stand-ins are folders of
`npu_rl/training/standins/`.

One bundled stack has open faults with a wrong result: the quickstart, whose packages are as released but for one patch.
They are actor-ignores-temperature, aux-loss-counts-chosen and weight-decay-by-number, all of Megatron's workers. Its
recipe trains with FSDP, which does not reach them; with `actor.strategy: megatron` a run on devices is refused."""


def fault_page(faults: Sequence[KnownFault]) -> str:
    """Return the page: a table of symptoms, followed by the faults grouped by severity."""
    return "\n".join(_lines(faults)) + "\n"


def _lines(faults: Sequence[KnownFault]) -> Iterator[str]:
    yield _INTRODUCTION
    by_severity = {name: [one for one in faults if one.severity == name] for name in SEVERITIES}
    yield "\n## By symptom\n"
    yield "| what you see | how it shows in the metrics | fault |"
    yield "| --- | --- | --- |"
    for found in by_severity.values():
        for one in found:
            yield f"| {_cell(one.symptom)} | {_cell(one.metrics)} | [{one.id}](#{one.id}) |"
    for severity, found in by_severity.items():
        if found:
            yield f"\n## {_HEADINGS[severity]}"
        for one in found:
            yield from _section(one)


def _section(fault: KnownFault) -> Iterator[str]:
    yield f"\n### {fault.id}\n"
    yield f"{_sentence(fault.title)}\n"
    yield f"- Effect: {fault.effect}"
    yield f"- Versions: {fault.versions}"
    yield f"- Upstream: {fault.upstream}"
    code = ", ".join(f"`{file}`" for file in dict.fromkeys(place.file for place in fault.code))
    yield f"- Code: {code}"
    yield f"- Ended by: {'; '.join(map(_ending, fault.ended))}"
    if fault.switch:
        yield f"- Brought back by: `adaptations: {{{fault.switch}: false}}`"
    script = Path("npu_rl/recipes/faults/witnesses", fault.witness.script)
    standins = "".join(f", `{name}`" for name in fault.witness.standins)
    variables = "".join(f", `{name}={value}`" for name, value in fault.witness.environment)
    yield f"- Witness: [{script.name}](../{script}), with the stand-ins `injected`{standins}{variables}"


def _ending(ending: Ending) -> str:
    if not ending.is_patch:
        return ending.by
    names = ending.by.removeprefix("patch ").split(" or ")
    return "patch " + " or ".join(f"[{name}](../patchsets/{name}.patch)" for name in names)


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
