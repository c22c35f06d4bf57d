"""Selection of rehearsal levels, and of those that can't be rehearsed, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from npu_rl.common.errors import NpuRlError, RecipeError, UsageError
from npu_rl.common.interpreter import read_interpreter
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.rehearsal import scale_npu_trainer, scale_recipe, scale_rollout
from npu_rl.rehearsal.layout_report import NotRehearsed
from npu_rl.rehearsal.level_names import LEVELS, require_level
from npu_rl.rehearsal.scale_rollout import CASES, Case
from npu_rl.rehearsal.training_checks.interrupted_training import SAVED, TWICE, is_interrupted
from npu_rl.training.host.vllm_environment import REQUIREMENTS
from npu_rl.training.run.prepare import Prepared
from npu_rl.training.run.training_interpreter import require_packages

_TRAINING = ("train", "rollout", "quick")
QUICK_STEPS = 3
VLLM_STANDINS = "0.9.1"
"""The only vLLM whose engine runs on the stand-ins (rehearsal/standins/vllm)."""
VLLM_GROUPS = (VLLM_STANDINS, "0.10.1")
"""Versions of vLLM that formed their groups with the packages of the extra `rehearsal`; 0.18 wants others."""

_ADAPTED_PARTS = ("npu_rl_runtime/rollout_offload",)
_TrainLevel = Literal["train", "rollout"]


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
    if level in _TRAINING and (error := _own_keys_obstacle(loaded, level)):
        raise error


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
    if level in LEVELS:
        if error := _obstacle(prepared, level):
            raise error
        _require_packages(prepared, level)
        return Chosen((level,), left_out=tuple(_left_out(prepared, (level,), prepared.recipe.steps)))
    trained, errors = _training_level(prepared)
    if level == "quick":
        if trained is None:
            raise errors[0]
        _require_packages(prepared, trained)
        steps = min(prepared.recipe.steps, QUICK_STEPS)
        left_out = (*_without_quick(trained), *_left_out(prepared, (trained,), steps))
        return Chosen((trained,), CASES[:1], steps, left_out)
    if trained is not None:
        _require_packages(prepared, trained)
        levels: tuple[str, ...] = ("imports", "layout", trained)
        return Chosen(levels, left_out=tuple(_left_out(prepared, levels, prepared.recipe.steps)))
    levels = ("imports", "layout") if _obstacle(prepared, "layout") is None else ("imports",)
    lost = _not_rehearsed("train", errors[0])
    return Chosen(levels, left_out=(lost, *_left_out(prepared, levels, prepared.recipe.steps)))


def _training_level(prepared: Prepared) -> tuple[_TrainLevel | None, list[NpuRlError]]:
    """Return the level that trains with most of the recipe's own code, or the reason why it can't."""
    own = prepared.recipe.trainer.module == scale_npu_trainer.MODULE
    order: tuple[_TrainLevel, ...] = ("train",) if own else ("rollout", "train")
    errors: list[NpuRlError] = []
    for level in order:
        error = _obstacle(prepared, level)
        if error is None:
            return level, []
        errors.insert(0, error)  # the last is of the level that needs least
    return None, errors


def vllm_version(code: Path) -> str | None:
    """Return a tree's vLLM version, without its local part, or None."""
    found = next(code.glob("vllm-*.dist-info"), None)
    return (
        None
        if found is None
        else found.name.removeprefix("vllm-").removesuffix(".dist-info").partition("+")[0]
    )


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


def _without_quick(trained: str) -> Iterator[NotRehearsed]:
    yield NotRehearsed("imports, layout", "quick only trains")
    if trained == "rollout":
        yield NotRehearsed(f"rollout, {' and '.join(CASES[1:])} parallel", "quick trains one case")


def _left_out(prepared: Prepared, levels: tuple[str, ...], steps: int) -> Iterator[NotRehearsed]:
    """Yield what is not rehearsed beside some levels: the rollout's own engine, its groups, what takes more steps."""
    own = prepared.recipe.trainer.module == scale_npu_trainer.MODULE  # its level train runs the engine
    engine = _rollout_obstacle(prepared) if _has_vllm(prepared) and not own else None
    if "train" in levels and engine is not None:
        yield _not_rehearsed("rollout", engine)
    why = groups_obstacle(prepared)
    if "layout" in levels and why is not None:
        yield NotRehearsed("layout, the rollout's groups", why)
    if "train" in levels or "rollout" in levels:
        yield from _later_steps(steps, own, "rollout" in levels)


def _later_steps(steps: int, own: bool, engine: bool) -> Iterator[NotRehearsed]:
    saved = scale_npu_trainer.SAVED if own else SAVED
    if not is_interrupted(steps, saved):
        yield NotRehearsed(
            "validation, save and resume", f"they take {saved + TWICE + 1} steps, and {steps} are trained"
        )
    wanted = scale_rollout.STEPS if own or engine else scale_recipe.STEPS
    if steps < wanted:
        yield NotRehearsed("the reward's goal", f"it takes {wanted} steps, and {steps} are trained")


def _not_rehearsed(level: str, error: NpuRlError) -> NotRehearsed:
    return NotRehearsed(level, ". ".join(filter(None, (str(error.what), error.why))))


def _has_vllm(prepared: Prepared) -> bool:
    """Return whether vLLM's engine generates in the run."""
    recipe = prepared.recipe
    has_engine = not recipe.has_own_keys and recipe.rollout.engine == "vllm"
    return has_engine and (prepared.paths.code / "vllm").is_dir()


def _obstacle(prepared: Prepared, level: str) -> NpuRlError | None:
    """Return why the recipe's tree can't be rehearsed at a level, or None."""
    recipe = prepared.recipe
    if level == "layout" and recipe.has_own_keys and not recipe.trainer.layout:
        return RecipeError(
            "The level layout needs the trainer's own keys for its sizes",
            where=prepared.loaded.where("trainer", "keys"),
            hint="Set them in trainer.layout (docs/recipe.md, Trainers that are not verl's)",
        )
    if level not in ("train", "rollout"):
        return None
    if error := _own_keys_obstacle(prepared.loaded, level):
        return error
    return _rollout_obstacle(prepared) if level == "rollout" else _train_obstacle(prepared)


def _own_keys_obstacle(loaded: LoadedRecipe, level: str) -> NpuRlError | None:
    if not loaded.recipe.has_own_keys:
        return None
    return UsageError(
        f"The level {level} can't rehearse {loaded.recipe.name}",
        where=loaded.where("trainer", "keys"),
        why="The trainer has its own keys, and npu-rl can't scale them down.",
        hint="Rehearse what it can: --rehearse=imports, --rehearse=layout",
    )


def _train_obstacle(prepared: Prepared) -> NpuRlError | None:
    recipe, code = prepared.recipe, prepared.paths.code
    if recipe.megatron and not has_mindspeed(prepared):
        return RecipeError(
            "The level train can rehearse the Megatron backend only with MindSpeed in the tree",
            where=prepared.loaded.where("actor", "strategy"),
            why=f"The manifest {prepared.lock.manifest} does not include MindSpeed.",
            hint="--rehearse=imports and --rehearse=layout work without it.",
        )
    if recipe.trainer.module == scale_npu_trainer.MODULE:
        return _vllm_obstacle(prepared, "train")
    workers = f"verl/workers/{'megatron' if recipe.megatron else 'fsdp'}_workers.py"
    if not (code / workers).is_file():
        return RecipeError(
            f"The level train can't rehearse the workers of {prepared.lock.manifest}",
            where=prepared.loaded.where("manifest"),
            why=f"The stand-in for the rollout is made for {workers}, which the tree does not have: verl removed it "
            "with 0.8, and its successors have no CPU version.",
            hint="Rehearse what it can: --rehearse=imports, --rehearse=layout",
        )
    return None


def _rollout_obstacle(prepared: Prepared) -> NpuRlError | None:
    recipe, code = prepared.recipe, prepared.paths.code
    if recipe.trainer.module == scale_npu_trainer.MODULE:
        return RecipeError(
            f"The level rollout can't rehearse the trainer {recipe.trainer.module}",
            where=prepared.loaded.where("trainer", "module"),
            why="Its workers have a resharding of their own, which the level train runs with vLLM's engine.",
            hint="--rehearse=train",
        )
    if recipe.rollout.engine != "vllm" or not recipe.megatron:
        return RecipeError(
            "The level rollout rehearses vLLM's engine with Megatron-core, and this recipe uses others",
            where=prepared.loaded.where("rollout", "engine"),
            hint="--rehearse=train rehearses its training.",
        )
    needed = ("vllm", "mindspeed", *_ADAPTED_PARTS)
    missing = [name for name in needed if not (code / name).is_dir() and not (code / f"{name}.py").is_file()]
    if missing:
        return RecipeError(
            f"The level rollout needs what the tree of {prepared.lock.manifest} does not have: {', '.join(missing)}",
            where=prepared.loaded.where("manifest"),
            hint="--rehearse=imports and --rehearse=layout work without them.",
        )
    return _vllm_obstacle(prepared, "rollout")


def _vllm_obstacle(prepared: Prepared, level: str) -> NpuRlError | None:
    version = vllm_version(prepared.paths.code)
    if version == VLLM_STANDINS:
        return None
    return RecipeError(
        f"The level {level} can't run the vLLM of {prepared.lock.manifest}",
        where=prepared.loaded.where("manifest"),
        why=f"The stand-ins for vLLM's compiled code are for {VLLM_STANDINS}, and the tree has {version or 'none'}.",
        hint="Rehearse what it can: --rehearse=imports, --rehearse=layout",
    )


def _require_packages(prepared: Prepared, level: str) -> None:
    """Raise HostError if the training interpreter lacks a package that vLLM's engine imports at this level."""
    own = level == "train" and prepared.recipe.trainer.module == scale_npu_trainer.MODULE
    if level != "rollout" and not own:
        return
    wanted = (*REQUIREMENTS, *(scale_npu_trainer.PACKAGES if own else ()))
    found = read_interpreter(prepared.interpreter.path)
    extra = "rehearsal-cann" if own else "rehearsal-vllm"
    require_packages(found, wanted, by="vLLM's engine", extra=extra)
