"""Check of the environment variables of a recipe and its manifest against the code and the manuals that read them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.common.masking import masked_value
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import shown
from npu_rl.recipes.environment import environment_table
from npu_rl.recipes.environment.environment_values import InvalidValue
from npu_rl.recipes.trainer_code.answer_cache import AnswerCache

if TYPE_CHECKING:
    from npu_rl.recipes.environment.environment_reads import EnvironmentReads, VariableRead
    from npu_rl.recipes.recipe.load_recipe import LoadedRecipe

RULES = ("environment-value", "environment-name", "environment-owned")
"""Ids of the findings of this module."""

_SHORTEST_NAME = 8  # characters; in shorter names one wrong letter is no sign of a typing error
_LONG_NAME = 14  # characters; in longer names two wrong letters still are
_SHORT_WORD = 5  # characters; shorter words with one other letter are other words: TC and SL, MHA and MLA
# Words of other libraries that are one letter off HCCL and the like: NCCL_BUFFSIZE is not a typing error.
_OTHER_LIBRARIES = frozenset(
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
    """One environment variable with an invalid value, an unknown name, or a name that only npu-rl sets.

    Attributes:
        rule: One of `RULES`.
        message: The fact, with the place that reads the variable.
        fix: What to write in the recipe.
        advice: Whether the run works nevertheless.
        certain: Whether every version of the reader refuses the value.
    """

    rule: str
    name: str
    message: str
    fix: str
    advice: bool = False
    certain: bool = False


def environment_findings(
    loaded: LoadedRecipe,
    environment: Mapping[str, str],
    code: Path | None,
    answers: AnswerCache | None = None,
) -> list[Finding]:
    """Return the findings on the environment of a recipe's run.

    Args:
        environment: The manifest's variables with the recipe's over them.
        code: The workspace's code folder; None checks only variables that no tree reads.
        answers: What was found in that folder before.
    """
    from npu_rl.recipes.trainer_code.adaptation_switches import given_switches, known_switches

    own = loaded.recipe.env
    given = given_switches({}, environment, {})
    invalid = [slug for slug, one in given.items() if one.on is None]
    switches = known_switches(code, invalid) if given else {}
    found = []
    for fault in environment_faults(environment, code, switches, answers):
        severity, path = Severity.ADVICE if fault.advice else Severity.ERROR, ("env", fault.name)
        message = fault.message + ("" if fault.name in own else f"; the manifest {loaded.stack_name} sets it")
        found.append(loaded.finding(fault.rule, severity, path, message, fault.fix, certain=fault.certain))
    return found


def environment_faults(
    environment: Mapping[str, str],
    code: Path | None,
    switches: Collection[str] = (),
    answers: AnswerCache | None = None,
) -> list[EnvironmentFault]:
    """Return the faults of environment variables that a recipe or a manifest sets.

    Args:
        code: The workspace's code folder; None checks only variables of CANN, HCCL, torch_npu, Ray and Hydra.
        switches: Names of the known adaptations; each has a variable NPU_RL_<NAME>.
        answers: What was found in that folder before.
    """
    check = _EnvironmentCheck(code, switches, answers)
    return [fault for name, value in environment.items() for fault in check.faults(name, value)]


class _EnvironmentCheck:
    def __init__(self, code: Path | None, switches: Collection[str], answers: AnswerCache | None) -> None:
        self._code = code
        self._answers = answers
        self._switches = {"NPU_RL_" + slug.upper().replace("-", "_"): slug for slug in switches}

    def faults(self, name: str, value: str) -> Iterator[EnvironmentFault]:
        if name in environment_table.OWNED:
            fix = environment_table.OWNED[name].format(name=name)
            yield EnvironmentFault("environment-owned", name, f"{name} is npu-rl's to set", fix, certain=True)
        elif name in self._switches:
            yield from self._switch_faults(name, value)
        elif name in environment_table.TYPES:
            wrong = environment_table.TYPES[name](value)
            if wrong:
                yield _invalid_value(name, value, wrong, environment_table.source_of(name))
        elif name not in environment_table.NAMES:
            yield from self._faults_by_reads(name, value)

    def _faults_by_reads(self, name: str, value: str) -> list[EnvironmentFault]:
        """Return the faults of a variable according to the tree's reads of it, from the cache if possible."""

        def find() -> list[EnvironmentFault]:
            reads = self._reads.reads_of(name) if self._reads else []
            return list(_read_faults(name, value, reads) if reads else self._unknown_name_faults(name))

        if self._answers is None:
            return find()
        question = ["environment", name, value, sorted(self._switches)]
        return self._answers.answer(question, find, _to_json, _from_json)

    @cached_property
    def _reads(self) -> EnvironmentReads | None:
        if self._code is None:
            return None
        from npu_rl.recipes.environment.environment_reads import EnvironmentReads

        return EnvironmentReads(self._code)

    def _switch_faults(self, name: str, value: str) -> Iterator[EnvironmentFault]:
        if value.strip().lower() not in ("0", "1", "true", "false", "yes", "no", "on", "off", ""):
            message = f"{name}={shown(value)} is neither 1 nor 0 (npu_rl_runtime/switches.py)"
            fix = f"set adaptations.{self._switches[name]} to true or false instead"
            yield EnvironmentFault("environment-value", name, message, fix, certain=True)

    def _unknown_name_faults(self, name: str) -> Iterator[EnvironmentFault]:
        """Yield a fault for a misspelt name, or for a name that only the tree could read but doesn't."""
        near = near_name(name, {*environment_table.NAMES, *self._switches})
        of_tree = name.startswith(environment_table.PREFIXES_OF_TREES)
        if self._code is not None and name.startswith("VLLM_"):
            of_tree = (self._code / "vllm").is_dir()  # else it is installed, and reads what isn't seen here
        if self._reads is None:
            of_tree = False
        elif near or of_tree:
            if self._reads.mentions(name):
                return
            near = near or near_name(name, self._reads.names) or name_with_digits(name, self._reads.names)
        if near:
            message = f"nothing reads {name}; did you mean {near}?"
            yield EnvironmentFault("environment-name", name, message, f"write env.{near} for env.{name}")
        elif of_tree:
            message = f"nothing in this tree reads {name}"
            yield EnvironmentFault("environment-name", name, message, f"remove env.{name}", advice=True)


def _to_json(faults: list[EnvironmentFault]) -> Any:
    return [asdict(fault) for fault in faults]


def _from_json(data: Any) -> list[EnvironmentFault]:
    return [EnvironmentFault(**fault) for fault in data]


def near_name(name: str, known: Collection[str]) -> str | None:
    """Return the known name that `name` probably misspells, or None.

    A misspelling differs in case or separators, in the order of its words, or in one letter (two in a long name).
    Digits and short words have to be equal: neither VLLM_USE_V2 nor HCCL_RDMA_SL is a misspelling of another name.
    """
    if len(name) < _SHORTEST_NAME or name in known:
        return None
    return next((candidate for candidate in sorted(known) if _is_near(name, candidate)), None)


def name_with_digits(name: str, known: Collection[str]) -> str | None:
    """Return the one known name that is `name` with its missing digits: VLLM_USE_V1 for VLLM_USE_V."""
    found = [other for other in known if other != name and re.sub(r"[0-9]", "", other) == name]
    return found[0] if len(found) == 1 else None


def _is_near(name: str, other: str) -> bool:
    mine, others = name.split("_"), other.split("_")
    if re.sub(r"[^0-9]", "", name) != re.sub(r"[^0-9]", "", other):
        return False
    if _OTHER_LIBRARIES.intersection(mine).difference(others):
        return False
    if _letters(name) == _letters(other) or _words(name) == _words(other):
        return True
    allowed = 2 if len(name) >= _LONG_NAME else 1
    if abs(len(name) - len(other)) > allowed or _distance(name, other, allowed) > allowed:
        return False
    pairs = zip(mine[1:], others[1:], strict=False)
    return not any(one != two and len(one) == len(two) < _SHORT_WORD for one, two in pairs)


def _read_faults(name: str, value: str, reads: list[VariableRead]) -> Iterator[EnvironmentFault]:
    """Yield a fault if the value is invalid for every read whose code shows what it accepts."""
    outcomes = [(read, read.values(value)) for read in reads if read.values is not None]
    refused = [(read, wrong) for read, wrong in outcomes if wrong is not None]
    if refused and len(refused) == len(outcomes):
        read, wrong = refused[0]
        yield _invalid_value(name, value, wrong, read.where)


def _invalid_value(name: str, value: str, wrong: InvalidValue, where: str) -> EnvironmentFault:
    given = shown(value) if masked_value(name, value) == value else "'***'"
    to = wrong.instead or wrong.wanted
    fix = f"set env.{name} to {to}" if to and value else f"remove env.{name}"
    message = f"{name}={given} {wrong.why} ({where})"
    return EnvironmentFault("environment-value", name, message, fix, certain=wrong.certain)


def _letters(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "", name).lower()


def _words(name: str) -> list[str]:
    return sorted(name.lower().split("_"))


def _distance(one: str, other: str, most: int) -> int:
    """Return the Damerau-Levenshtein distance (adjacent transpositions) of two texts, or `most + 1` if it is larger."""
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
