"""Selection of rehearsal levels, and of those that can't be rehearsed, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from npu_rl.common.documentation import page_url
from npu_rl.common.errors import NpuRlError, RecipeError, UsageError
from npu_rl.common.interpreter import read_interpreter
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.rehearsal import scale_npu_trainer, scale_recipe, scale_rollout, scale_server
from npu_rl.rehearsal.layout_report import NotRehearsed
from npu_rl.rehearsal.level_names import LEVELS, require_level
from npu_rl.rehearsal.scale_rollout import CASES, Case
from npu_rl.rehearsal.scale_server import has_server
from npu_rl.rehearsal.training_checks.interrupted_training import SAVED, TWICE, is_interrupted
from npu_rl.training.host.vllm_environment import REQUIREMENTS, vllm_version
from npu_rl.training.run.prepare import Prepared
from npu_rl.training.run.training_interpreter import require_packages

QUICK_STEPS = 3
VLLM_STANDINS = "0.9.1"
"""The only vLLM whose engine runs on the stand-ins (rehearsal/standins/vllm)."""
VLLM_GROUPS = (VLLM_STANDINS, "0.10.1")
"""Versions of vLLM that formed their groups with the packages of the extra `rehearsal`; 0.18 wants others."""

_OF_ENGINE = ("vllm", "mindspeed", "npu_rl_runtime/rollout_offload")


@dataclass(frozen=True)
class Chosen:
    """The levels of a rehearsal.

    Attributes:
        cases: Cases of the level *rollout*.
        steps: Greatest number of training steps, or None.
        left_out: What is not rehearsed of the recipe, beside the levels that were not asked for.
    """

    levels: tuple[str, ...]
    cases: tuple[Case, ...] = CASES
    steps: int | None = None
    left_out: tuple[NotRehearsed, ...] = ()


def require_possible(loaded: LoadedRecipe, level: str) -> None:
    """Check what the recipe alone decides, before it is judged and the workspace verified, which takes seconds.

    Raises:
        UsageError: If there is no such level, or the recipe's trainer has keys of its own and the level trains.
    """
    require_level(level)
    if level in ("train", "rollout", "quick") and loaded.recipe.has_own_keys:
        raise UsageError(
            f"The level {level} can't rehearse {loaded.recipe.name}",
            where=loaded.where("trainer", "keys"),
            why=_OWN_KEYS,
            hint=_HINT,
        )


def choose_levels(prepared: Prepared, level: str) -> Chosen:
    """Return the levels to rehearse.

    Args:
        level: One of LEVELS, "all", or "quick": only the training, one case, three steps.

    Raises:
        UsageError: If there is no such level, or npu-rl can't scale the recipe's trainer for it.
        RecipeError: If the recipe or the tree lacks what the level needs.
        HostError: If the interpreter lacks packages.
    """
    require_possible(prepared.loaded, level)
    obstacles = {name: _obstacle(prepared, name) for name in LEVELS}
    trained = "rollout" if obstacles["rollout"] is None else "train"  # most of the recipe's own code
    levels = {"all": ("imports", "layout", trained), "quick": (trained,)}.get(level, (level,))
    if level != "all" and (error := obstacles[levels[0]]):
        raise error
    possible = tuple(name for name in levels if obstacles[name] is None)
    steps = min(prepared.recipe.steps, QUICK_STEPS) if level == "quick" else None
    lost = [_not_rehearsed(name, error) for name in levels if (error := obstacles[name])]
    if "train" in possible and _has_vllm(prepared) and (error := obstacles["rollout"]):
        lost.append(_not_rehearsed("rollout", error))
    if level == "quick":
        lost.insert(0, NotRehearsed("imports, layout", "quick only trains"))
        if trained == "rollout":
            lost.insert(
                1, NotRehearsed(f"rollout, {' and '.join(CASES[1:])} parallel", "quick trains one case")
            )
    _require_packages(prepared, possible)
    left_out = (*lost, *_left_out(prepared, possible, steps or prepared.recipe.steps))
    return Chosen(possible, CASES[:1] if level == "quick" else CASES, steps, left_out)


def groups_obstacle(prepared: Prepared) -> str | None:
    """Return why vLLM's groups can't be formed at the level *layout*, or None."""
    version = vllm_version(prepared.paths.code)
    if version is None or version in VLLM_GROUPS:
        return None
    return f"vLLM {version} needs other packages than the extra `rehearsal` has; {' and '.join(VLLM_GROUPS)} were tried"


def has_mindspeed(prepared: Prepared) -> bool:
    """Return whether the tree has MindSpeed, which imports torch_npu and therefore needs its stand-in."""
    trains = prepared.recipe.megatron or prepared.recipe.has_own_keys
    return trains and (prepared.paths.code / "mindspeed").is_dir()


def _is_npu_trainer(prepared: Prepared) -> bool:
    """Return whether the trainer is cann-recipes-train's, whose level train runs vLLM's engine."""
    return prepared.recipe.trainer.module == scale_npu_trainer.MODULE


def _has_vllm(prepared: Prepared) -> bool:
    """Return whether vLLM's engine generates in the run, and not at the level train."""
    recipe = prepared.recipe
    code = prepared.paths.code
    generates = not recipe.has_own_keys and recipe.rollout.engine == "vllm" and not has_server(code)
    return generates and (code / "vllm").is_dir() and not _is_npu_trainer(prepared)


def _not_rehearsed(level: str, error: NpuRlError) -> NotRehearsed:
    return NotRehearsed(level, error.why or str(error.what))


def _left_out(prepared: Prepared, levels: tuple[str, ...], steps: int) -> Iterator[NotRehearsed]:
    """Yield what is not rehearsed at some levels: the rollout's groups, and what takes more steps."""
    why = groups_obstacle(prepared)
    if "layout" in levels and why is not None:
        yield NotRehearsed("layout, the rollout's groups", why)
    if not {"train", "rollout"} & {*levels}:
        return
    own = _is_npu_trainer(prepared)
    saved = scale_npu_trainer.SAVED if own else SAVED
    if not is_interrupted(steps, saved):
        why = f"they take {saved + TWICE + 1} steps, and {steps} are trained"
        yield NotRehearsed("validation, save and resume", why)
    wanted = scale_rollout.STEPS if own or "rollout" in levels else scale_recipe.STEPS
    if steps < wanted:
        yield NotRehearsed("the reward's goal", f"it takes {wanted} steps, and {steps} are trained")


_OWN_KEYS = "The trainer has its own keys, and npu-rl can't scale them down."
_HINT = "Rehearse what it can: --rehearse=imports, --rehearse=layout"


def _obstacle(prepared: Prepared, level: str) -> RecipeError | None:
    """Return why the recipe's tree can't be rehearsed at a level, or None."""
    for keys, why in _reasons(prepared, level):
        what = f"The level {level} can't rehearse {prepared.recipe.name}"
        return RecipeError(what, where=prepared.loaded.where(*keys), why=why, hint=_HINT)
    return None


def _reasons(prepared: Prepared, level: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what keeps a level from being rehearsed, each with the recipe's key."""
    recipe, code, manifest = prepared.recipe, prepared.paths.code, prepared.lock.manifest
    if level == "layout" and recipe.has_own_keys and not recipe.trainer.layout:
        yield (
            ("trainer", "keys"),
            f"trainer.layout does not name the sizes: {page_url('recipe', 'trainers-that-are-not-verls')}",
        )
    if level not in ("train", "rollout"):
        return
    if recipe.has_own_keys:
        yield ("trainer", "keys"), _OWN_KEYS
        return
    own, engine = _is_npu_trainer(prepared), level == "rollout" or _is_npu_trainer(prepared)
    if level == "rollout" and own:
        yield (
            ("trainer", "module"),
            "Its workers have a resharding of their own: --rehearse=train runs vLLM's engine.",
        )
    if level == "rollout" and (recipe.rollout.engine != "vllm" or not recipe.megatron):
        yield (
            ("rollout", "engine"),
            "It runs vLLM's engine with Megatron-core, and this recipe uses others: --rehearse=train does without.",
        )
    if recipe.megatron and not has_mindspeed(prepared):
        yield (
            ("actor", "strategy"),
            f"Megatron is rehearsed only with MindSpeed in the tree: not in {manifest}.",
        )
    missing = [
        name for name in _OF_ENGINE if not (code / name).is_dir() and not (code / f"{name}.py").is_file()
    ]
    if level == "rollout" and missing:
        yield ("manifest",), f"The tree of {manifest} does not have {', '.join(missing)}."
    serves = level == "train" and has_server(code)
    workers = f"verl/workers/{'megatron' if recipe.megatron else 'fsdp'}_workers.py"
    if not engine and not serves and not (code / workers).is_file():
        yield (
            ("manifest",),
            f"The stand-in for the rollout is made for {workers}, which {manifest} does not have.",
        )
    version = vllm_version(code)
    wanted = scale_server.VLLM if serves else VLLM_STANDINS
    if (engine or serves) and version != wanted:
        yield (
            ("manifest",),
            f"The stand-ins for vLLM's compiled code are for {wanted}, and the tree has {version or 'none'}.",
        )
    if serves and scale_server.model_of(recipe).startswith("tiny-deepseek"):
        yield (
            ("model", "architecture"),
            "Its model has latent attention, which the CPU platform of vLLM's server has not.",
        )


def _require_packages(prepared: Prepared, levels: tuple[str, ...]) -> None:
    """Raise HostError if the training interpreter lacks a package that vLLM's engine imports at a level."""
    own = "train" in levels and _is_npu_trainer(prepared)
    if "rollout" in levels or own:
        wanted = (*REQUIREMENTS, *(scale_npu_trainer.PACKAGES if own else ()))
        found = read_interpreter(prepared.interpreter.path)
        extra = "rehearsal-cann" if own else "rehearsal-vllm"
        require_packages(found, wanted, by="vLLM's engine", extra=extra)
