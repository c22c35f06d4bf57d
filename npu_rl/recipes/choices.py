"""Keys whose values the trainer looks up by name, and the names it has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from npu_rl.recipes.code_files import source_files
from npu_rl.recipes.kinds import ANY, Kinds
from npu_rl.recipes.python_classes import Sources

_ESTIMATOR = "verl.trainer.ppo.core_algos.AdvantageEstimator"
_MANAGERS = "verl/workers/reward_manager"
_REGISTERED = re.compile(r"^@register\(\s*['\"](\w+)['\"]", re.M)


def choices_of(key: str, code: Path, sources: Sources) -> Kinds:
    """The names a key may have in this tree; ANY if it takes any, or the tree keeps them elsewhere."""
    names: tuple[str, ...] = ()
    if key == "algorithm.adv_estimator":
        names = _enumeration(sources, _ESTIMATOR)
    elif key == "reward_model.reward_manager":
        names = _registered(code / _MANAGERS)
    return Kinds(frozenset({"text"}), names) if names else ANY


def _enumeration(sources: Sources, dotted: str) -> tuple[str, ...]:
    """The values of a text enumeration."""
    found = sources.find(dotted)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return ()
    values = [item.value for item in found[1].body if isinstance(item, ast.Assign)]
    return tuple(v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str))


def _registered(folder: Path) -> tuple[str, ...]:
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in source_files(folder.glob("*.py")))
    return tuple(name for text in texts for name in _REGISTERED.findall(text))
