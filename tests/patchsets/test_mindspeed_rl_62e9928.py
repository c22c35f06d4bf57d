"""The patchset MindSpeed-RL/62e9928, held against the commit it is for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, tree

pytestmark = pytest.mark.upstreams

MANIFEST, COMPONENT = "mindspeed-rl-grpo", "MindSpeed-RL"
PUBLISHED = ("grpo_qwen25_7b_A3.yaml", "grpo_qwen25_32b_A3.yaml")
READERS = {
    "megatron_training": "megatron_config",
    "actor_config": "megatron_config",
    "rl_config": "rl_config",
    "generate_config": "generate_config",
}


@pytest.fixture(scope="module")
def patched(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(upstreams, tmp_path_factory.mktemp("rl") / "code", [COMPONENT], manifest=MANIFEST)


@pytest.fixture(scope="module")
def upstream(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rl-upstream") / "code"
    return tree(upstreams, folder, [COMPONENT], manifest=MANIFEST, patched=False)


def unread(code: Path, name: str) -> list[str]:
    """The keys of a configuration that are no attribute of the class that reads their section."""
    found = []
    for section, keys in yaml.safe_load((code / "configs" / name).read_text(encoding="utf-8")).items():
        if section in READERS:
            reader = code / "mindspeed_rl" / "config_cls" / f"{READERS[section]}.py"
            known = set(re.findall(r"self\.(\w+) *=", reader.read_text(encoding="utf-8")))
            found += [f"{section}.{key}" for key in keys if key not in known | {"model"}]
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_key_is_read(patched: Path, upstream: Path, name: str) -> None:
    assert unread(patched, name) == []
    assert unread(upstream, name) == ["rl_config.shuffle_minibatch"]


def test_shuffling_can_be_set(patched: Path, upstream: Path) -> None:
    found = {
        code: run(WITNESSES / "shuffle_mini_batch_ignored.py", code, npu=False)
        for code in (patched, upstream)
    }
    assert found[upstream] == {"fault": True, "shuffles": dict.fromkeys(PUBLISHED, False)}
    assert found[patched] == {"fault": False, "shuffles": dict.fromkeys(PUBLISHED, True)}


def test_megatron_starts_without_a_compiler(patched: Path, upstream: Path) -> None:
    """The order of the other calls stays; what upstream's call writes into the tree is in megatron/core/datasets."""
    script = WITNESSES / "mindspeed_rl_compiles_into_the_tree.py"
    started, before = (run(script, code, npu=False) for code in (patched, upstream))
    assert (started["fault"], before["fault"]) == (False, True)
    assert before["called"] == [*started["called"], "_compile_dependencies"]
    assert started["called"][-2:] == ["_set_random_seed", "_init_autoresume"]
