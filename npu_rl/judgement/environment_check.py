"""The environment that a recipe and its manifest set, against the code and the manuals that read it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.config.finding import Finding, Severity
from npu_rl.config.problems import shown
from npu_rl.judgement import environment_table
from npu_rl.judgement.environment_values import Wrong
from npu_rl.masking import masked_value
from npu_rl.trainer_code.answer_cache import AnswerCache

if TYPE_CHECKING:
    from npu_rl.judgement.environment_reads import EnvironmentReads, VariableRead
    from npu_rl.trainer_keys.key_check import RecipeWithOrigins

RULES = ("environment-value", "environment-name", "environment-owned")
"""The ids of the findings here."""

_SHORTEST = 8  # letters of a name in which one letter off is a typing error
_LONG = 14  # and two letters
_SHORT_WORD = 5  # letters; of shorter ones, another letter makes another word: TC and SL, MHA and MLA
# Words of other libraries' names, one letter off HCCL and the like: NCCL_BUFFSIZE is a name of its own.
_OTHERS = frozenset(
    (
        "NCCL",
        "RCCL",
        "MCCL",
        "LCCL",
        "XCCL",
        "ECCL",
        "BCCL",
        "CNCL",
        "MUSA",
        "MLU",
        "GCU",
        "XPU",
        "HIP",
        "ROCM",
        "UCX",
    )
)


@dataclass(frozen=True)
class EnvironmentFault:
    """One variable that is not as its reader takes it.

    rule: environment-value, environment-name or environment-owned. advice: the run can go on. certain: no version of
    the reader takes the value.
    """

    rule: str
    name: str
    message: str
    fix: str
    advice: bool = False
    certain: bool = False


def environment_findings(
    loaded: RecipeWithOrigins,
    environment: Mapping[str, str],
    code: Path | None,
    answers: AnswerCache | None = None,
) -> list[Finding]:
    """What is wrong with the environment of a recipe's run.

    Args:
        loaded: The recipe.
        environment: The manifest's variables with the recipe's over them.
        code: The workspace's code folder; without one, only what no tree reads is judged.
        answers: What was found in that folder before.
    """
    from npu_rl.trainer_code.adaptation_switches import known_switches

    own = loaded.recipe.env
    switches = known_switches(code) if any(name.startswith("NPU_RL_") for name in environment) else {}
    found = []
    for fault in environment_faults(environment, code, switches, answers):
        severity = Severity.ADVICE if fault.advice else Severity.ERROR
        path = ("env", fault.name)
        by = "" if fault.name in own else f"; the manifest {loaded.recipe.manifest} sets it"
        found.append(
            Finding(
                fault.rule,
                severity,
                path,
                "",
                fault.message + by,
                fault.fix,
                loaded.where(*path),
                fault.certain,
            )
        )
    return found


def environment_faults(
    environment: Mapping[str, str],
    code: Path | None,
    switches: Collection[str] = (),
    answers: AnswerCache | None = None,
) -> list[EnvironmentFault]:
    """What is wrong with variables that a recipe or a manifest sets.

    code: the workspace's code folder; without one, only variables of CANN, HCCL, torch_npu, Ray and Hydra are judged.
    switches: the adaptations that are known, each with a variable of its own.
    answers: what was found in the folder before.
    """
    check = _Check(code, switches, answers)
    return [fault for name, value in environment.items() for fault in check.faults(name, value)]


class _Check:
    def __init__(self, code: Path | None, switches: Collection[str], answers: AnswerCache | None) -> None:
        self._code = code
        self._answers = answers
        self._switches = {"NPU_RL_" + slug.upper().replace("-", "_"): slug for slug in switches}

    def faults(self, name: str, value: str) -> Iterator[EnvironmentFault]:
        if name in environment_table.OWNED:
            fix = environment_table.OWNED[name].format(name=name)
            yield EnvironmentFault("environment-owned", name, f"{name} is npu-rl's to set", fix, certain=True)
        elif name in self._switches:
            yield from self._of_switch(name, value)
        elif name in environment_table.TYPES:
            wrong = environment_table.TYPES[name](value)
            if wrong:
                yield _of_value(name, value, wrong, environment_table.source_of(name))
        elif name not in environment_table.NAMES:
            yield from self._by_code(name, value)

    def _by_code(self, name: str, value: str) -> list[EnvironmentFault]:
        def find() -> list[EnvironmentFault]:
            reads = self._reads.of(name) if self._reads else []
            return list(_of_reads(name, value, reads) if reads else self._unknown(name))

        if self._answers is None:
            return find()
        question = ["environment", name, value, sorted(self._switches)]
        return self._answers.answer(question, find, _to_json, _from_json)

    @cached_property
    def _reads(self) -> EnvironmentReads | None:
        if self._code is None:
            return None
        from npu_rl.judgement.environment_reads import EnvironmentReads

        return EnvironmentReads(self._code)

    def _of_switch(self, name: str, value: str) -> Iterator[EnvironmentFault]:
        if value.strip().lower() not in ("0", "1", "true", "false", "yes", "no", "on", "off", ""):
            key = f"adaptations.{self._switches[name]}"
            message = f"{name}={shown(value)} is neither 1 nor 0 (npu_rl_runtime/switches.py)"
            yield EnvironmentFault(
                "environment-value", name, message, f"set {key} to true or false instead", certain=True
            )

    def _unknown(self, name: str) -> Iterator[EnvironmentFault]:
        """A name that nobody is known to read: a typing error of one that somebody does, or another program's."""
        near = near_name(name, {*environment_table.NAMES, *self._switches})
        of_tree = name.startswith(environment_table.PREFIXES_OF_TREES)
        if self._reads is None:
            of_tree = False
        elif near or of_tree:
            if self._reads.names_it(name):
                return
            near = near or near_name(name, self._reads.names)
        if near:
            message = f"nothing reads {name}; did you mean {near}?"
            yield EnvironmentFault("environment-name", name, message, f"write env.{near} for env.{name}")
        elif of_tree:
            message = f"nothing in this tree reads {name}"
            yield EnvironmentFault("environment-name", name, message, f"remove env.{name}", advice=True)


def _to_json(faults: list[EnvironmentFault]) -> Any:
    return [asdict(fault) for fault in faults]


def _from_json(kept: Any) -> list[EnvironmentFault]:
    return [EnvironmentFault(**fault) for fault in kept]


def near_name(name: str, known: Collection[str]) -> str | None:
    """The known name of which `name` is surely a typing error; None if it may be a name of its own.

    Another case or other separators, the same words in another order, one letter off, or two in a long name. Digits
    have to be the same, and short words: neither VLLM_USE_V2 nor HCCL_RDMA_SL is a typing error of another name.
    """
    if len(name) < _SHORTEST or name in known:
        return None
    return next((candidate for candidate in sorted(known) if _is_near(name, candidate)), None)


def _is_near(name: str, other: str) -> bool:
    mine, others = name.split("_"), other.split("_")
    if re.sub(r"[^0-9]", "", name) != re.sub(r"[^0-9]", "", other) or _OTHERS.intersection(mine) - set(
        others
    ):
        return False
    if _letters(name) == _letters(other) or _words(name) == _words(other):
        return True
    allowed = 2 if len(name) >= _LONG else 1
    if abs(len(name) - len(other)) > allowed or _distance(name, other, allowed) > allowed:
        return False
    pairs = zip(mine[1:], others[1:], strict=False)
    return not any(one != two and len(one) == len(two) < _SHORT_WORD for one, two in pairs)


def _of_reads(name: str, value: str, reads: list[VariableRead]) -> Iterator[EnvironmentFault]:
    """A value that no reader takes of those that say what they take."""
    outcomes = [(read, read.values(value)) for read in reads if read.values is not None]
    refused = [(read, wrong) for read, wrong in outcomes if wrong is not None]
    if refused and len(refused) == len(outcomes):
        read, wrong = refused[0]
        yield _of_value(name, value, wrong, read.where)


def _of_value(name: str, value: str, wrong: Wrong, where: str) -> EnvironmentFault:
    given = shown(value) if masked_value(name, value) == value else "'***'"
    to = wrong.instead or wrong.wanted
    fix = f"set env.{name} to {to}" if to and value else f"remove env.{name}"
    return EnvironmentFault(
        "environment-value", name, f"{name}={given} {wrong.why} ({where})", fix, certain=wrong.certain
    )


def _letters(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "", name).lower()


def _words(name: str) -> list[str]:
    return sorted(name.lower().split("_"))


def _distance(one: str, other: str, most: int) -> int:
    """Letters to add, drop, change or swap (Damerau-Levenshtein, of neighbours), or most + 1 if there are more."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return row[-1]
