"""Check of the environment variables of a recipe and its manifest: names and values by variables.yaml and the tree."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from npu_rl.common.bounded import parse_yaml
from npu_rl.common.environment_variables import reserved
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import shown
from npu_rl.common.yaml_documents.suggest import nearest
from npu_rl.recipes.trainer_code.source_files import read_source

if TYPE_CHECKING:
    from npu_rl.recipes.recipe.load_recipe import LoadedRecipe


_ALIKE = 0.9  # difflib's ratio of a misspelt name; HCCL_RDMA_SL and HCCL_RDMA_TC have 0.83
_QUOTED = re.compile(rb"""["']([A-Z][A-Z0-9_]{4,})["']""")
_READS = re.compile(rb"\benviron\b|\bgetenv\b")
_SWITCH_WORDS = ("0", "1", "true", "false", "yes", "no", "on", "off", "")


@dataclass(frozen=True)
class EnvironmentFault:
    """One environment variable with an invalid value, an unknown name, or a name that only npu-rl sets.

    Attributes:
        rule: environment-value, environment-name or environment-owned.
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


class _Invalid(NamedTuple):
    """Why a value is invalid, and a valid one, or a description of those; "" if the variable is best removed."""

    why: str
    instead: str = ""
    certain: bool = False


class _Table(NamedTuple):
    """The parts of variables.yaml: each name with its values and who reads it."""

    values: Mapping[str, Any]
    where: Mapping[str, str]
    of_trees: tuple[str, ...]
    other_libraries: frozenset[str]


@cache
def known_variables() -> _Table:
    """Return the table of variables, read once."""
    data = parse_yaml(Path(__file__).with_name("variables.yaml").read_bytes())
    values: dict[str, Any] = {}
    where: dict[str, str] = {}
    for reader in data["readers"]:
        found = {**dict.fromkeys(reader.get("names", "").split()), **reader["values"]}
        values.update(found)
        where.update(dict.fromkeys(found, reader["where"]))
    return _Table(values, where, tuple(data["of_trees"]), frozenset(data["other_libraries"]))


def environment_findings(
    loaded: LoadedRecipe, environment: Mapping[str, str], code: Path | None
) -> list[Finding]:
    """Return the findings on the environment of a recipe's run.

    Args:
        environment: The manifest's variables with the recipe's over them.
        code: The workspace's code folder; None checks only variables that no tree reads.
    """
    from npu_rl.recipes.trainer_code.adaptation_switches import given_switches, known_switches

    own = loaded.recipe.env
    given = given_switches({}, environment, {})
    invalid = [slug for slug, one in given.items() if one.on is None]
    switches = known_switches(code, invalid) if given else {}
    found = []
    for fault in environment_faults(environment, code, switches):
        severity, path = Severity.ADVICE if fault.advice else Severity.ERROR, ("env", fault.name)
        message = fault.message + ("" if fault.name in own else f"; the manifest {loaded.stack_name} sets it")
        found.append(loaded.finding(fault.rule, severity, path, message, fault.fix, certain=fault.certain))
    return found


def environment_faults(
    environment: Mapping[str, str], code: Path | None, switches: Collection[str] = ()
) -> list[EnvironmentFault]:
    """Return the faults of environment variables that a recipe or a manifest sets.

    Args:
        code: The workspace's code folder; None judges no name that only a tree reads.
        switches: Names of the known adaptations; each has a variable NPU_RL_<NAME>.
    """
    slugs = {"NPU_RL_" + slug.upper().replace("-", "_"): slug for slug in switches}
    return list(chain.from_iterable(_faults(*item, code, slugs) for item in environment.items()))


def _faults(name: str, value: str, code: Path | None, slugs: Mapping[str, str]) -> Iterator[EnvironmentFault]:
    table, owned = known_variables(), reserved()
    of_tree = name.startswith(table.of_trees)
    if name in owned:
        message, fix = f"{name} is npu-rl's to set", owned[name].format(name=name)
        yield EnvironmentFault("environment-owned", name, message, fix, certain=True)
    elif name in slugs:
        if value.strip().lower() not in _SWITCH_WORDS:
            message = f"{name}={shown(value)} is neither 1 nor 0 (npu_rl_runtime/switches.py)"
            fix = f"set adaptations.{slugs[name]} to true or false instead"
            yield EnvironmentFault("environment-value", name, message, fix, certain=True)
    elif name in table.values and (wrong := _invalid(value, table.values[name])):
        fix = f"set env.{name} to {wrong.instead}" if wrong.instead and value else f"remove env.{name}"
        message = f"{name}={shown(value)} {wrong.why} ({table.where[name]})"
        yield EnvironmentFault("environment-value", name, message, fix, certain=wrong.certain)
    elif name not in table.values or (of_tree and not name.startswith("NPU_RL_")):
        yield from _unknown_name(name, code, slugs, of_tree)


def _unknown_name(
    name: str, code: Path | None, slugs: Mapping[str, str], of_tree: bool
) -> Iterator[EnvironmentFault]:
    """Yield advice if no text of the tree has a name that is like a known one, or that only the tree could read."""
    table = known_variables()
    near = None
    if not table.other_libraries.intersection(name.split("_")):
        near = nearest(name, {*table.values, *slugs} - {name}, _ALIKE)
    if code is None and of_tree:
        return
    if code is not None and (near or of_tree):
        if name.startswith("VLLM_") and not (code / "vllm").is_dir():
            return  # vLLM is installed, and reads what isn't seen here
        others: set[str] = set()
        word = re.compile(rb"\b%s\b" % re.escape(name.encode()))
        for text in _texts(code, name):
            if word.search(text):
                return
            if _READS.search(text):
                others.update(match.decode() for match in _QUOTED.findall(text))
        near = nearest(name, {*table.values, *slugs, *others} - {name}, _ALIKE)
    reader = "nothing in this tree reads" if code else "no reader is known of"
    if near:
        message, fix = f"{reader} {name}; did you mean {near}?", f"write env.{near} for env.{name}"
        yield EnvironmentFault("environment-name", name, message, fix, advice=True)
    elif of_tree:
        yield EnvironmentFault(
            "environment-name", name, f"{reader} {name}", f"remove env.{name}", advice=True
        )


def _texts(code: Path, name: str) -> Iterator[bytes]:
    """Yield the texts of the tree's Python files, likely readers first: `envs.py`, then vllm* for VLLM_X."""
    word = name.partition("_")[0].lower()
    folders = sorted(code.iterdir(), key=lambda one: (not one.name.startswith(word), one.name))
    lists = [folder / "envs.py" for folder in folders]
    files = chain(lists, chain.from_iterable(sorted(one.rglob("*.py")) for one in folders if one.is_dir()))
    yield from filter(None, map(read_source, chain(files, code.glob("*.py"))))


def _invalid(value: str, accepted: Any) -> _Invalid | None:
    """Return why a value is not an accepted one; None if it is, or if any is."""
    if accepted is None:
        return None
    if isinstance(accepted, str):
        return _invalid_number(value, *accepted.split())
    if isinstance(accepted, list):
        accepted = {"words": accepted}
    if "pairs" in accepted:
        return _invalid_pairs(value, accepted["pairs"], accepted["exclusive"])
    if "any_text_is_on" in accepted:
        off = value.strip().lower() in ("0", "false", "no", "off")
        return _Invalid("is read as on: any text is, and to leave it out is off") if off else None
    words = [str(word) for word in accepted.get("words") or accepted["any_case"]]
    if value in words or ("any_case" in accepted and value.lower() in [word.lower() for word in words]):
        return None
    listed = ", ".join(words)
    instead = nearest(value, words) or f"one of {listed}"
    return _Invalid(f"is not one of {listed}", instead, bool(accepted.get("certain")))


def _invalid_number(value: str, kind: str, bounds: str, unit: str = "") -> _Invalid | None:
    low, _, high = bounds.partition("..")
    name = {"whole": "a whole number", "number": "a number"}[kind] + (f" of {unit}" if unit else "")
    try:
        given = float(int(value) if kind == "whole" else value)
    except ValueError:
        with_unit = re.fullmatch(r"([0-9.]+)\s*([A-Za-z]+)", value.strip())
        same = with_unit and unit.lower().startswith(with_unit[2].lower())
        return _Invalid(f"is not {name}", with_unit[1] if with_unit and same else name, certain=True)
    if given < float(low) or (high and given > float(high)):
        nearer = low if given < float(low) else high
        return _Invalid(f"is not within {low} to {high or 'any'}{f' {unit}' if unit else ''}", nearer)
    return None


def _invalid_pairs(value: str, keys: Mapping[str, Any], exclusive: list[str]) -> _Invalid | None:
    given: list[str] = []
    for item in filter(str.strip, re.split(r",(?![^\[]*\])", value)):
        key, colon, text = (part.strip() for part in item.partition(":"))
        if not colon or not text:
            return _Invalid(f"has {item!r} where KEY:VALUE is read", "KEY:VALUE,KEY:VALUE")
        if key not in keys:
            if near := nearest(key, keys):  # others may be keys of another version
                return _Invalid(f"has the unknown key {key!r}", value.replace(f"{key}:", f"{near}:"))
        elif wrong := _invalid(text, keys[key]):
            instead = value.replace(f"{key}:{text}", f"{key}:{wrong.instead}")
            return _Invalid(f"has {text!r} for {key}, which {wrong.why}", instead)
        given += [key, f"{key}:{text}"]
    first, *others = exclusive
    if first in given and (conflicts := [one for one in others if one in given]):
        return _Invalid(f"has {conflicts[0]}, which conflicts with {first}")
    return None
