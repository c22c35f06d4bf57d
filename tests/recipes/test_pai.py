"""The recipes of Pai-Megatron-Patch: every value has a source, each argument of the script is there or explained."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from npu_rl.common.bundled import bundled_recipes, data_root
from npu_rl.common.yaml_documents.yaml_reader import read_yaml
from npu_rl.recipes.judgement.judge import AssembledTree, judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.recipe_fields import read_scalar
from npu_rl.recipes.recipe.recipe_kind import RECIPE
from npu_rl.stack.lock import lock_model
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.stack.manifest.manifest_kind import MANIFEST
from tests.recipes.test_deepseek_r1_zero import NAMES, ROW, said
from tests.support import clean_env, git, rewrites, run_cli

NAME, EDITED = "pai-deepseek-v3-128gpu", "pai-deepseek-v3-128gpu-mcore-250908"
SCRIPT = "examples/deepseek_v3/run_mcore_deepseek_verl.sh"
ARGUMENTS = 58
SMALLER = ["cluster.die_memory_gb=96"]
LEFT_OUT = re.compile(r"\| `([\w.]+)` \| .+ \| .+ \|")


def sources() -> tuple[str, str]:
    """The table of values, and that of what is left out."""
    text = (data_root() / "recipes" / f"{NAME}.sources.md").read_text(encoding="utf-8")
    values, _, rest = text.partition("\n## What the script says and the recipe leaves out\n")
    return values, rest.partition("\n## ")[0]


def test_every_value_has_its_source_and_nothing_else_has() -> None:
    text = read_yaml(bundled_recipes()[NAME].read_bytes(), NAME, RECIPE).data
    written = {key: value for key, value in said(text) if key not in NAMES}
    rows = []
    for line in sources()[0].splitlines():
        if line.startswith("| `"):
            match = ROW.fullmatch(line)
            assert match, line
            value = read_yaml(f"v: {match[2]}".encode(), match[1], MANIFEST).data["v"]
            rows.append((match[1], value, match[3], match[4]))
    assert {key: value for key, value, *_ in rows} == written
    assert [key for key, *_ in rows] == list(written), "in the recipe's order, each once"
    assert {source for _, _, source, _ in rows} <= {"script", "ours"}
    assert [key for key, _, source, note in rows if source == "ours" and not note] == []


def test_the_documents_layout() -> None:
    layout = judge(load_recipe(NAME)).plan.facts.layout
    assert layout is not None
    train = layout.train
    assert (train.tensor, train.pipeline, train.expert, train.expert_tensor) == (4, 16, 2, 4)
    assert layout.world == 128 and list(layout.stage_layers) == [3, *[4] * 14, 2]
    assert layout.rollout is not None and layout.rollout.tensor == 32


def test_it_fits_in_141_gb_and_not_in_96() -> None:
    assert judge(load_recipe(NAME)).errors == ()
    (error,) = judge(load_recipe(NAME, SMALLER)).errors
    assert error.rule == "kv-cache-room", (
        "by vLLM's own pins: the share of the engine holds its weights and no cache"
    )


def test_the_other_differs_by_its_manifest_alone() -> None:
    before, after = dict(said(load_recipe(NAME).data)), dict(said(load_recipe(EDITED).data))
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert changed == {"name", "title", "manifest", "extends"}


def arguments(script: str) -> dict[str, str]:
    """The trainer's arguments of a script, by bash itself; it finds no command but the one that is looked at."""
    bash = shutil.which("bash")
    assert bash
    stubs = 'python() { printf \'%s\\n\' "$@"; }; tee() { while read -r line; do echo "$line"; done; }\n'
    run = subprocess.run(
        [bash, "-c", stubs + script], env={"PATH": "/nowhere", "WORLD_SIZE": "16"},
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    words = [re.fullmatch(r"\+*([\w.]+)=(.*)", line) for line in run.stdout.splitlines()]
    return {word[1]: word[2] for word in words if word}


def same(text: str, value: Any) -> bool:
    return bool(read_scalar(yaml.safe_load(text)) == value or yaml.safe_load(text) == value)


@pytest.fixture(scope="module")
def locked() -> lock_model.LockedComponent:
    lock = lock_model.read(lock_model.lock_path(load_manifest("pai-megatron-deepseek-v3").path))
    return lock.components["Pai-Megatron-Patch"]


@pytest.mark.upstreams
def test_each_argument_of_the_script_is_there_or_explained(
    upstreams: Path, locked: lock_model.LockedComponent
) -> None:
    text = git("show", f"{locked.pin}:{SCRIPT}", git_dir=upstreams / "alibaba+Pai-Megatron-Patch" / "repo")
    given = arguments(text)
    assert len(given) == ARGUMENTS
    ours = {key: one.value for key, one in load_recipe(NAME).settings.items()}
    explained = {
        match[1] for line in sources()[1].splitlines() if (match := LEFT_OUT.fullmatch(line)) is not None
    }
    assert given.keys() - ours.keys() == explained
    assert {key for key, value in given.items() if key in ours and not same(value, ours[key])} == set()


@pytest.mark.upstreams
def test_the_manifest_has_the_scripts_environment(
    upstreams: Path, locked: lock_model.LockedComponent
) -> None:
    text = git("show", f"{locked.pin}:{SCRIPT}", git_dir=upstreams / "alibaba+Pai-Megatron-Patch" / "repo")
    exported = dict(re.findall(r"^export ((?:CUDA|RAY|VLLM)_\w+)=(\S+)$", text, re.MULTILINE))
    assert exported == load_manifest("pai-megatron-deepseek-v3").manifest.env


@pytest.mark.upstreams
@pytest.mark.parametrize("name", [NAME, EDITED])
def test_its_own_tree_takes_it(upstreams: Path, tmp_path: Path, name: str) -> None:
    """Every key is read there, and nothing of it is advised against but the prompts that are not filtered."""
    manifest = load_recipe(name).recipe.manifest
    env = clean_env(tmp_path) | {"NPU_RL_REWRITE": rewrites(upstreams, manifest)}
    done = run_cli(["setup", "-m", manifest, "-w", tmp_path / "w"], env, tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    judgement = judge(load_recipe(name), AssembledTree(tmp_path / "w" / "code", manifest))
    assert judgement.errors == ()
    assert {one.rule for one in judgement.findings} == {"overlong-prompts"}
    (error,) = judge(load_recipe(name, SMALLER), AssembledTree(tmp_path / "w" / "code", manifest)).errors
    assert error.rule == "memory-update" and "118.9 GB, of 96.0 GB" in error.message
