"""verl's example scripts for NPUs as recipes: what each passes to the trainer, and the recipe that says the same.

`python -m tests.plan.published_scripts` writes the recipes of tests/plan/published again. It needs hydra-core, and the
upstreams in the folder that NPU_RL_UPSTREAMS names.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from npu_rl.recipes.judgement.key_check import read_trainer
from npu_rl.recipes.recipe.key_map import _fields, recipe_key_of
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.recipe_fields import key_of
from npu_rl.recipes.recipe.reserved_keys import RESERVED
from npu_rl.recipes.recipe.trainer_command import Command, Folders, render
from npu_rl.recipes.trainer_keys.key_resolver import KeyResolver
from tests.code_trees import archive, lay
from tests.support import ok, run_program

HERE = Path(__file__).parent / "published"
TREES = {"today": "7aed6b230776", "newest": "88512193628b"}  # verl's commit by manifest
NIGHTLY = "tests/special_npu/nightly_ci_ascend/run_gspo_qwen3_30b_megatron_npu.sh"
# Set by npu-rl for each run, and so without a recipe's key.
OURS = (*RESERVED, "trainer.total_epochs", "trainer.total_training_steps")
_FIRST = "logging.validate_first"  # off in recipes, on in verl
_FILES = ("data.train_files", "data.val_files")
_ARCHITECTURES = {
    "Qwen2.5-32B": "qwen2.5-32b",
    "Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen3-32B": "qwen3-32b",
    "Qwen3-235B-A22B": "qwen3-235b-a22b",
}
# Python on the PATH of a script: torch_npu is there, the trainer's arguments and environment are written down, and
# nothing else is run.
_PYTHON = """#!/bin/bash
if [[ "$1" == -m && "$2" == verl.* ]]; then
    printf '%s\\0' "${@:2}" > "$SCRIPT_ARGUMENTS"
    env -0 > "$SCRIPT_ARGUMENTS.env"
fi
"""
# What a script does beside starting its trainer is left out; its PATH has no more than it needs to find its values.
_QUIET = "ulimit() { :; }; hf() { :; }; ray() { :; }; mkdir() { :; }; tee() { :; }\n"
_TOOLS = ("date", "dirname", "basename", "cat", "env", "seq", "bash")
_SHELL = {"PATH", "HOME", "PWD", "OLDPWD", "SHLVL", "_", "BASH_ENV", "SCRIPT_ARGUMENTS", "INFER_BACKEND"}


@dataclass(frozen=True)
class Script:
    """One script at one commit.

    Attributes:
        file: Its path.
        module: The module that it runs.
        arguments: What it passes to it.
        env: The variables that it exports.
    """

    file: str
    module: str
    arguments: tuple[str, ...]
    env: Mapping[str, str] = field(hash=False)

    @property
    def name(self) -> str:
        """A name for a recipe: the folder's algorithm and the file's own."""
        folder, file = Path(self.file).parts[-2:]
        own = re.sub(r"^run_|_npu|\\.sh$|\.sh$", "", file)
        return f"{folder.removesuffix('_trainer')}-{own}".replace("_", "-").replace(".", "-").lower()

    @property
    def has_critic(self) -> bool:
        """Whether it trains a critic, which recipes have no keys for."""
        return self.option("algorithm.adv_estimator") == "gae"

    @property
    def is_for_npus_only(self) -> bool:
        """Whether it is one of those that are stored as recipes; the others ask which device there is."""
        return re.search("npu|ascend", self.file) is not None

    def option(self, name: str) -> str | None:
        """The last value of an option or key, as text."""
        own = re.compile(rf"[-+]*{re.escape(name)}=(.*)", re.DOTALL)
        given = [found[1] for found in map(own.match, self.arguments) if found]
        return given[-1].strip("'\"") if given else None

    @property
    def is_ours(self) -> bool:
        """Whether a recipe can say it: main_ppo with vLLM, by FSDP or Megatron; one with a critic is refused."""
        engine, strategy = self.option("model_engine"), self.option("actor_rollout_ref.actor.strategy")
        backends = {"dp", "fsdp", "fsdp2", "megatron", None}
        return (
            self.module == "verl.trainer.main_ppo"
            and self.option("actor_rollout_ref.rollout.name") == "vllm"
            and {engine, strategy} <= backends
        )


def scripts(upstreams: Path, commit: str) -> Iterator[Script]:
    """Every script under examples/ that has a setting for NPUs and runs main_ppo there, and the nightly one."""
    repository = upstreams / "verl-project+verl/repo"
    found = _git(repository, "grep", "-l", "verl.trainer.main_ppo", commit, "--", "examples/*.sh", NIGHTLY)
    for line in found.splitlines():
        file = line.partition(":")[2]
        text = _git(repository, "show", f"{commit}:{file}")
        code = file + "".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        script = _run(file, text) if re.search("npu|ascend", code, re.IGNORECASE) else None
        if script is not None:
            yield script


def _git(repository: Path, *words: str) -> str:
    return ok(run_program(["git", "-C", repository, *words])).stdout


def _run(file: str, text: str) -> Script | None:
    """What a script passes to the trainer; None if it ends before, for want of a path that only its user knows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay(folder, {"python": _PYTHON, "python3": _PYTHON, "quiet": _QUIET, "script.sh": text})
        for python in ("python", "python3"):
            (folder / python).chmod(0o755)
        for tool in _TOOLS:
            (folder / tool).symlink_to(shutil.which(tool) or "/usr/bin/env")
        out = folder / "out"
        env = {
            "PATH": str(folder),
            "HOME": "/home/you",
            "BASH_ENV": str(folder / "quiet"),
            "SCRIPT_ARGUMENTS": str(out),
            "INFER_BACKEND": "vllm",
        }
        run_program(["/bin/bash", folder / "script.sh"], env=env, cwd=folder, timeout=60)
        if not out.exists():
            return None
        module, *arguments = out.read_text().split("\0")[:-1]
        lines = Path(f"{out}.env").read_text().split("\0")
        exported = dict(line.partition("=")[::2] for line in lines if "=" in line)
        own = {key: value for key, value in exported.items() if key not in _SHELL and name not in value}
        return Script(file, module, tuple(one.replace(name, "/home/you") for one in arguments), own)


# -- the trainer's own Hydra --------------------------------------------------------------------------------


def compose(folder: Path, config: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Every key that the trainer's Hydra gives, references resolved where they can be."""
    import hydra
    from omegaconf import OmegaConf

    with hydra.initialize_config_dir(str(folder), version_base=None):
        return _flat(OmegaConf.to_container(hydra.compose(config, list(overrides)), resolve=True))


def _flat(value: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, item in value.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        found |= _flat(item, key) if isinstance(item, Mapping) and item else {key: item}
    return found


@cache
def resolved(script: Script, code: Path) -> dict[str, Any]:
    """What the script's own arguments give."""
    config = (script.option("--config-name") or "ppo_trainer").removesuffix(".yaml")
    return compose(_folder(code), config, [one for one in script.arguments if not one.startswith("--")])


def command_of(file: Path, code: Path, run_name: str) -> Command:
    """The command of a recipe in a code tree."""
    recipe = load_recipe(str(file)).recipe
    trainer = read_trainer(recipe, code)
    assert isinstance(trainer, KeyResolver), trainer
    here = Path("/r")
    folders = Folders(code, here, here, here, "k", here, here, None, ())
    return render(
        recipe, folders, run_name=run_name, run_id="0", python=sys.executable,
        known=frozenset(trainer.tree.entries), groups=frozenset(trainer.tree.choices),
        search_path=trainer.tree.search_path, manifest_env={},
    )  # fmt: skip


def differences(script: Script, file: Path, code: Path) -> dict[str, tuple[Any, Any]]:
    """The keys whose values differ, but for those that npu-rl sets in every run."""
    theirs = resolved(script, code)
    command = command_of(file, code, str(theirs["trainer.experiment_name"]))
    ours = compose(_folder(code), command.config, command.hydra_overrides)
    both = {key: (theirs.get(key, _ABSENT), ours.get(key, _ABSENT)) for key in sorted({*theirs, *ours})}
    return {
        key: (their, our)
        for key, (their, our) in both.items()
        if not is_set_by_npu_rl(key) and _same(key, their) != _same(key, our)
    }


_ABSENT = "(absent)"


def is_set_by_npu_rl(key: str) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in OURS)


def _same(key: str, value: Any) -> Any:
    """A name and a list of it are the same to the trainer (utils/dataset/rl_dataset.py:120, tracking.py@7aed6b2)."""
    return [value] if key in (*_FILES, "trainer.logger") and isinstance(value, str) else value


def _folder(code: Path) -> Path:
    return code / "verl/trainer/config"


# -- the recipe of a script ---------------------------------------------------------------------------------


def write_recipe(script: Script, code: Path, manifest: str, file: Path) -> None:
    """Write a recipe that gives the trainer what the script gives it."""
    theirs = resolved(script, code)
    for _ in range(2):  # what the recipe's own defaults set otherwise is an override of the second round
        other = differences(script, file, code) if file.exists() else {}
        more = {key: value for key, (value, _) in other.items() if value != _ABSENT}
        data = _recipe(script, theirs, manifest, more)
        head = f"# {script.file} of verl@{TREES[manifest]}, as a recipe.\n"
        file.write_text(head + yaml.safe_dump(data, sort_keys=False, width=110, allow_unicode=True))


def shorten(file: Path, manifest: str, twin: Path) -> None:
    """Have a recipe extend the one of the same script in the other tree, if they differ in the manifest alone."""
    if not twin.exists() or twin == file:
        return
    own, other = (yaml.safe_load(place.read_text()) for place in (file, twin))
    if {**other, "manifest": manifest} == own:
        head = file.read_text().partition("\n")[0]
        file.write_text(f"{head}\nschema: 1\nextends: ./{twin.name}\nmanifest: {manifest}\n")


def _recipe(
    script: Script, theirs: Mapping[str, Any], manifest: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    named = (script.option("--config-name") or "").removesuffix(".yaml")
    megatron = "megatron" in (named + (script.option("model_engine") or ""))
    set_here = {one.lstrip("+").partition("=")[0] for one in script.arguments if one[:1] not in "~-"}
    data: dict[str, Any] = {
        "schema": 1,
        "name": script.name,
        "title": script.file,
        "manifest": manifest,
        "device": "npu",
        "steps": theirs.get("trainer.total_training_steps") or 100,
    }
    if named and named != ("ppo_megatron_trainer" if megatron else "ppo_trainer"):
        data["trainer"] = {"config": named}
    said: set[str] = set()
    for dotted, held in _fields().items():
        key, open_ended = key_of(held), getattr(held.annotation, "__origin__", None) is dict
        targets = key.names(megatron) if key and not key.more else ()
        if not targets or dotted in ("steps", "seed"):
            continue
        if open_ended:
            inner = [one for one in theirs if one.startswith(f"{targets[0]}.") and one in set_here]
            value: Any = {one.removeprefix(f"{targets[0]}."): theirs[one] for one in inner}
            value = value if all("." not in name for name in value) else {}
            said |= set(inner) if value else set()
        else:
            values = [theirs.get(one) for one in targets]
            value = values[0] if values.count(values[0]) == len(values) else None
            needed = dotted in ("rollout.responses", "optimizer.lr", "actor.strategy", "rollout.engine")
            if value is None or not (needed or set(targets) & set_here):
                continue
            said |= set(targets)
        if value not in ({}, None):
            _put(data, dotted, _listed(value) if f"{targets[0]}" in _FILES else value)
    model = str(data["model"]["path"]).split("/")[-1]
    known = [name for part, name in _ARCHITECTURES.items() if part in model]
    if known:
        data["model"]["architecture"] = known[0]
    left = {key: theirs[key] for key in theirs if key in set_here or _above(key) & set_here} | dict(more)
    unsaid = [key for key in left if key not in said and not is_set_by_npu_rl(key)]
    overrides = {key: left[key] for key in unsaid}
    for key in [one for one in overrides if recipe_key_of(one) == _FIRST]:
        _put(data, _FIRST, overrides.pop(key))
    return {**data, **({"env": dict(script.env)} if script.env else {}), "overrides": overrides}


def _above(key: str) -> set[str]:
    parts = key.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _put(data: dict[str, Any], dotted: str, value: Any) -> None:
    *above, last = dotted.split(".")
    for name in above:
        data = data.setdefault(name, {})
    data[last] = value


if __name__ == "__main__":
    mirrors = Path(os.environ["NPU_RL_UPSTREAMS"])
    for stack, pin in TREES.items():
        with tempfile.TemporaryDirectory() as name:
            tree = archive(mirrors / "verl-project+verl/repo", pin, "verl", Path(name))
            for script in scripts(mirrors, pin):
                if script.is_ours and script.is_for_npus_only and not script.has_critic:
                    place = HERE / f"{stack}-{script.name}.yaml"
                    place.unlink(missing_ok=True)
                    write_recipe(script, tree, stack, place)
                    shorten(place, stack, HERE / f"today-{script.name}.yaml")
                    print(place.name, differences(script, place, tree))
