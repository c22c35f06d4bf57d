"""The trainer's configuration composed without Hydra. That Hydra agrees: test_hydra_agrees.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.recipes.trainer_code.config_tree import ConfigFault, ModuleFault
from npu_rl.recipes.trainer_code.hydra_config import compose_files
from npu_rl.recipes.trainer_code.hydra_entry import entry_point
from npu_rl.recipes.trainer_code.hydra_yaml import read_config
from tests.code_trees import MODULE, VERL, lay


def values(code: Path, config: str = "top") -> dict[str, object]:
    tree = compose_files(code / "config", config, code)
    return {key: entry.value for key, entry in tree.entries.items() if not entry.section}


def config(tmp_path: Path, **files: str) -> Path:
    """A code folder whose configuration has these files, by name without the suffix; / is written __."""
    return lay(tmp_path, {f"config/{name.replace('__', '/')}.yaml": text for name, text in files.items()})


def test_a_file_without_defaults(tmp_path: Path) -> None:
    code = config(tmp_path, top="a: 1\nb:\n  c: text\n  d: {}\n")
    tree = compose_files(code / "config", "top.yaml", code)
    assert values(code) == {"a": 1, "b.c": "text"}
    assert tree.entries["b"].section and tree.entries["b.d"].section
    assert tree.entries["b.c"].where == "config/top.yaml:3"
    assert tree.children("") == ["a", "b"] and tree.children("b") == ["c", "d"]
    assert tree.holders("c") == ["b"]


def test_each_key_is_where_it_was_written_last(tmp_path: Path) -> None:
    code = config(
        tmp_path,
        top="defaults:\n  - actor@x.actor: dp\n  - _self_\nx:\n  actor:\n    n: 3\n",
        actor__dp="defaults:\n  - base\n  - _self_\nm: 2\n",
        actor__base="n: 1\nm: 1\nonly: 1\n",
    )
    tree = compose_files(code / "config", "top", code)
    assert values(code) == {"x.actor.n": 3, "x.actor.m": 2, "x.actor.only": 1}
    assert tree.entries["x.actor.n"].where == "config/top.yaml:6"
    assert tree.entries["x.actor.m"].where == "config/actor/dp.yaml:4"
    assert tree.entries["x.actor.only"].where == "config/actor/base.yaml:3"
    assert set(tree.files) == {"config/top.yaml", "config/actor/dp.yaml", "config/actor/base.yaml"}


@pytest.mark.parametrize(
    ("order", "winner"), [("_self_, {g: o}", "o"), ("{g: o}, _self_", "top"), ("{g: o}", "top")]
)
def test_self_says_when_the_file_itself_counts(tmp_path: Path, order: str, winner: str) -> None:
    """Last, without it."""
    code = config(tmp_path, top=f"defaults: [{order}]\ng: {{k: top}}\n", g__o="k: o\n")
    assert values(code) == {"g.k": winner}


def test_optional_null_lists_and_overrides(tmp_path: Path) -> None:
    code = config(
        tmp_path,
        top="defaults:\n  - optional g: missing\n  - n: null\n  - l: [a, b]\n  - mid\n  - override c: two\n",
        mid="defaults:\n  - c: one\n",
        c__one="v: 1\n",
        c__two="v: 2\n",
        l__a="a: 1\n",
        l__b="b: 1\n",
    )
    assert values(code) == {"l.a": 1, "l.b": 1, "c.v": 2}


ENGINES = {
    "top": "defaults:\n  - e: dp\n  - x@a.x: ${e}_x\n  - _self_\n",
    "top_of_two": "defaults:\n  - top\n  - override e: two\n",
    "e__dp": "# @package _global_\ne: dp\n",
    "e__two": "# @package _global_\ne: two\n",
    "x__dp_x": "defaults:\n  - ../y@y: of_dp\nv: 1\n",
    "x__two_x": "v: 2\n",
    "y__of_dp": "w: 1\n",
}
"""Files as verl has them from 0.7.1 on: `model_engine` chooses the files of the actor."""


@pytest.mark.parametrize(
    ("config_name", "choices", "expected"),
    [
        ("top", {}, {"e": "dp", "a.x.v": 1, "a.x.y.w": 1}),
        ("top", {"e": "two", "unknown": "z"}, {"e": "two", "a.x.v": 2}),
        ("top_of_two", {}, {"e": "two", "a.x.v": 2}),
        ("top_of_two", {"e": "dp"}, {"e": "dp", "a.x.v": 1, "a.x.y.w": 1}),
    ],
)
def test_an_interpolated_default_follows_the_group_it_names(
    tmp_path: Path, config_name: str, choices: dict[str, str | None], expected: dict[str, object]
) -> None:
    code = config(tmp_path, **ENGINES)
    tree = compose_files(code / "config", config_name, code, choices)
    assert {key: one.value for key, one in tree.entries.items() if not one.section} == expected
    assert tree.choices["e"] == expected["e"]
    assert not any(".." in file for file in tree.files)


@pytest.mark.parametrize("choices", [{"e": None}, {"e": "${f}"}])
def test_an_interpolation_of_no_option_stays_an_error(tmp_path: Path, choices: dict[str, str | None]) -> None:
    code = config(tmp_path, **ENGINES)
    with pytest.raises(ConfigFault, match="only Hydra can resolve"):
        compose_files(code / "config", "top", code, choices)


def test_packages(tmp_path: Path) -> None:
    code = config(
        tmp_path,
        top="defaults:\n  - g@_global_: a\n  - g@p.q: b\n  - /g/sub@here: c\n  - h: d\n",
        g__a="a: 1\n",
        g__b="b: 1\n",
        g__sub__c="c: 1\n",
        h__d="# @package moved\nd: 1\n",
    )
    assert values(code) == {"a": 1, "p.q.b": 1, "here.c": 1, "moved.d": 1}


def test_a_search_path_adds_folders(tmp_path: Path) -> None:
    code = config(tmp_path, top="hydra: {searchpath: ['file://more', 'pkg://pack.conf']}\ndefaults: [x, y]\n")
    lay(code, {"more/x.yaml": "x: 1\n", "pack/conf/y.yaml": "y: 1\n"})
    assert values(code) == {"x": 1, "y": 1}


def test_scalars_are_typed_as_omegaconf_types_them(tmp_path: Path) -> None:
    text = "a: 1e-6\nb: yes\nc: 2024-01-01\nd: 0x10\ne: ~\nf: '1'\ng: 1_000\nh: [1, 1e3, x]\ni: ${a}\nj: .5\n"
    typed = [1e-6, True, "2024-01-01", 16, None, "1", 1000, [1, 1000.0, "x"], "${a}", 0.5]
    assert values(config(tmp_path, top=text)) == dict(zip("abcdefghij", typed, strict=True))


@pytest.mark.parametrize(
    ("files", "message", "where"),
    [
        ({}, "missing configuration top.yaml", "config"),
        ({"top": "defaults:\n  - g: x\n"}, "missing configuration g/x.yaml", "config/top.yaml:2"),
        ({"top": "a: [\n"}, "it is not valid YAML", "config/top.yaml:2"),
        ({"top": "- a\n"}, "it holds no mapping", "config/top.yaml:1"),
        ({"top": "x: 1\ndefaults: no\n"}, "its defaults are not a list", "config/top.yaml:2"),
        ({"top": "defaults:\n  - g: ${n}\n", "g__a": ""}, "only Hydra can resolve", "config/top.yaml:2"),
        ({"top": "defaults: [top]\n"}, "its defaults are circular: top", "config/top.yaml:1"),
        ({"top": "defaults:\n  - {a: b, c: d}\n"}, "which is not a default", "config/top.yaml:2"),
    ],
)
def test_what_cannot_be_composed_is_told(
    tmp_path: Path, files: dict[str, str], message: str, where: str
) -> None:
    code = config(tmp_path, **files)
    with pytest.raises(ConfigFault, match=message.replace(".", r"\.")) as fault:
        compose_files(code / "config", "top", code)
    assert fault.value.where == where


def test_the_entry_point_is_read_from_its_decorator(tmp_path: Path) -> None:
    code = lay(tmp_path, VERL)
    found = entry_point(code, "verl.trainer.main_ppo")
    assert (found.folder, found.config) == ((code / "verl/trainer/config").resolve(), "ppo_trainer")
    assert found.where == "verl/trainer/main_ppo.py:4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no module"),
        (MODULE.replace("@hydra.main", "@other"), "no @hydra.main"),
        ("def (", "no module"),
    ],
)
def test_a_module_without_an_entry_point(tmp_path: Path, text: str | None, message: str) -> None:
    code = lay(tmp_path, {"pkg/main.py": text} if text else {})
    with pytest.raises(ModuleFault, match=message):
        entry_point(code, "pkg.main")


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-5, 5) | st.text("ab -:#'", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner)
    ),
    max_leaves=8,
)


@pytest.mark.second
@given(data=st.dictionaries(st.text("abc", min_size=1, max_size=3), plain))
def test_any_yaml_mapping_is_read_as_yaml_reads_it(
    tmp_path_factory: pytest.TempPathFactory, data: object
) -> None:
    path = tmp_path_factory.mktemp("y") / "f.yaml"
    text = yaml.safe_dump(data)
    path.write_text(text, encoding="utf-8")
    assert _plain(read_config(path, "f.yaml").body) == yaml.safe_load(text)


def _plain(node: object) -> object:
    items = getattr(node, "items", None)
    return {k: _plain(v) for k, v in items.items()} if isinstance(items, dict) else node.value  # type: ignore[attr-defined]
