"""The static composition gives what Hydra gives: for verl's own configurations, and for made-up ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.rehearsal
hydra = pytest.importorskip("hydra")

from hydra.core.global_hydra import GlobalHydra  # noqa: E402
from hydra.types import RunMode  # noqa: E402
from hypothesis import HealthCheck, assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

from npu_rl.recipes.trainer_code.config_tree import ConfigFault  # noqa: E402
from npu_rl.recipes.trainer_code.hydra_config import compose_files  # noqa: E402
from tests.code_trees import lay  # noqa: E402
from tests.trainer_code.test_hydra_config import ENGINES  # noqa: E402


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, item in value.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        result[key] = None if isinstance(item, dict) else item
        if isinstance(item, dict):
            result |= flat(item, key)
    return result


def by_hydra(folder: Path, config: str, *overrides: str) -> dict[str, Any]:
    with hydra.initialize_config_dir(str(folder), version_base=None):
        return flat(OmegaConf.to_container(hydra.compose(config, list(overrides)), resolve=False))


def files_of(folder: Path, config: str) -> list[str | None]:
    """The files Hydra composes, each as often as it does."""
    with hydra.initialize_config_dir(str(folder), version_base=None):
        loader = GlobalHydra.instance().config_loader()
        chosen = loader.compute_defaults_list(config, [], RunMode.RUN)
    return [item.config_path for item in chosen.defaults]


def by_us(folder: Path, config: str, **choices: str) -> dict[str, Any]:
    composed = compose_files(folder, config, folder, choices)
    return {key: entry.value for key, entry in composed.entries.items()}


@pytest.mark.parametrize("config", ["ppo_trainer", "ppo_megatron_trainer", "sft_trainer", "generation"])
def test_verl(code_tree: Path, config: str) -> None:
    folder = code_tree / "verl/trainer/config"
    ours = by_us(folder, config)
    assert len(ours) > 40
    assert ours == by_hydra(folder, config)


@pytest.mark.parametrize("top", ["top", "top_of_two"])
@pytest.mark.parametrize("engine", [None, "dp", "two"])
def test_interpolated_defaults(tmp_path: Path, top: str, engine: str | None) -> None:
    folder = lay(tmp_path, {f"{name.replace('__', '/')}.yaml": text for name, text in ENGINES.items()})
    ours = by_us(folder, top, **({"e": engine} if engine else {}))
    assert ours == by_hydra(folder, top, *([f"e={engine}"] if engine else []))


@pytest.mark.parametrize("first", ["a", "[a, b]"])
@pytest.mark.parametrize("second", ["b", "[b]", "[b, a]", "null"])
def test_options_that_are_lists_are_overridden(tmp_path: Path, first: str, second: str) -> None:
    top = f"defaults:\n  - /h@p.q: {first}\n  - override /h@p.q: {second}\n"
    folder = lay(tmp_path, {"top.yaml": top, "h/a.yaml": "k: 1\nx: 1\n", "h/b.yaml": "k: 2\ny: 2\n"})
    assert by_us(folder, "top") == by_hydra(folder, "top")


GROUPS = ("g", "h", "g/sub")
OPTIONS = ("a", "b")
PACKAGES = ("", "@p", "@p.q", "@_global_", "@_here_", "@_global_.r", "@_group_")
bodies = st.dictionaries(
    st.sampled_from(("k", "p", "g")),
    st.integers(0, 9)
    | st.none()
    | st.dictionaries(st.sampled_from(("k", "q")), st.integers(0, 9), max_size=2),
    max_size=3,
)
groups = st.builds(
    lambda word, slash, group, package, option: (word, f"{slash}{group}{package}", option),
    st.sampled_from(("", "optional ")),
    st.sampled_from(("", "/")),
    st.sampled_from(GROUPS),
    st.sampled_from(PACKAGES),
    st.sampled_from((*OPTIONS, *OPTIONS, None, ["a", "b"])),
)
names = st.builds(
    lambda name, package: f"{name}{package}",
    st.sampled_from(("/g/a", "h/b", "mid")),
    st.sampled_from(PACKAGES),
)


@st.composite
def defaults(draw: st.DrawFn, middle: bool) -> list[Any]:
    """A defaults list Hydra mostly accepts: each group once, overrides of them last, `_self_` anywhere."""
    chosen = draw(st.lists(groups, max_size=3, unique_by=lambda item: item[1].lstrip("/")))
    items: list[Any] = [{f"{word}{name}": option} for word, name, option in chosen]
    items += draw(st.lists(names.filter(lambda name: middle or "mid" not in name), max_size=1))
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), "_self_")
    for _, name, option in chosen:
        if option is not None and draw(st.integers(0, 3)) == 0:
            items.append({f"override {name}": draw(st.sampled_from((*OPTIONS, None, ["b", "a"])))})
    if middle and "mid" in items and draw(st.booleans()):
        items.append({"override h": draw(st.sampled_from(OPTIONS))})
    return items


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_made_up_configurations(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """What Hydra composes we compose alike, unless we say that we can't."""
    folder = tmp_path_factory.mktemp("config")
    for name in ("top", "mid", *(f"{group}/{option}" for group in GROUPS for option in OPTIONS)):
        body = data.draw(bodies)
        if name in ("top", "mid"):
            chosen = data.draw(defaults(name == "top"))
        elif name in ("g/a", "h/a"):
            chosen = data.draw(st.sampled_from(([], ["b"], ["/h/b", "_self_"], [{"/g/sub@x": "a"}])))
        else:
            chosen = []
        written = {**({"defaults": chosen} if chosen else {}), **body}
        header = data.draw(st.sampled_from(("", "", "# @package moved\n", "# @package _global_\n")))
        lay(folder, {f"{name}.yaml": header + OmegaConf.to_yaml(OmegaConf.create(written))})
    try:
        expected = by_hydra(folder, "top")
    except Exception:  # noqa: BLE001 - whatever Hydra refuses is none of ours
        return
    used = files_of(folder, "top")
    assume(len(used) == len(set(used)))  # Hydra merges into its copy of a file, which a second use then sees
    try:
        found = by_us(folder, "top")
    except ConfigFault:
        pytest.fail("Hydra composes what we refuse")
    assert found == expected
