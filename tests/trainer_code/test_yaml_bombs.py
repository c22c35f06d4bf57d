"""Configuration files of a tree that take all stack, memory or time: one line each, as for manifests."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from npu_rl.common.bounded import parse_yaml
from npu_rl.recipes.trainer_code.config_tree import ConfigFault
from npu_rl.recipes.trainer_code.hydra_config import compose_files
from tests.support import cpu_seconds

TEXTS: dict[str, tuple[str, str]] = {
    "flow": ("x: " + "[" * 50_000, "nest"),
    "braces": ("x: " + "{a: " * 50_000, "nest"),
    "closed": ("x: " + "[" * 900 + "]" * 900, "nest"),
    "block": ("".join(" " * n + "a:\n" for n in range(900)), "nest"),
    "keys": ("? " * 5000, "nest"),
    "dashes": ("- " * 5000, "nest"),
    "itself": ("a: &a [*a]", "nested too deeply"),
    "not-a-bool": ("a: !!bool x", "can't be read"),
    "not-an-int": ("a: !!int ''", "can't be read"),
    "not-a-time": ("a: [!!timestamp x]", "can't be read"),
    "a-list-as-key": ("a: [{[1]: 2}]", "can't be read"),
    "merged-text": ("a: {<<: xy}", "can't be read"),
    "control": ("a: \x01", "YAML"),
    "large": ("a: " + "x" * (1 << 20), "larger than"),
    "package": ("# @package " + "a." * 100_000 + "a\nb: 1\n", "more than 32 levels"),
    "no-default": ("defaults: ['@x']\n", "missing configuration"),
    "no-group": ("defaults: [{'': x}]\n", "missing configuration"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_each_is_one_fault_with_its_line(name: str, tmp_path: Path) -> None:
    text, words = TEXTS[name]
    (tmp_path / "top.yaml").write_text(text)
    started = cpu_seconds()
    with pytest.raises(ConfigFault) as raised:
        compose_files(tmp_path, "top", tmp_path)
    assert words in str(raised.value) and raised.value.where.startswith("top.yaml:"), raised.value
    assert cpu_seconds() - started < 2


def test_defaults_that_double_at_each_level(tmp_path: Path) -> None:
    for n in range(25):
        (tmp_path / f"c{n}.yaml").write_text(f"defaults: [c{n + 1}@a, c{n + 1}@b]\n")
    (tmp_path / "c25.yaml").write_text("x: 1\n")
    with pytest.raises(ConfigFault, match="more than 200 files"):
        compose_files(tmp_path, "c0", tmp_path)


def test_what_the_bounds_allow(tmp_path: Path) -> None:
    for text in (
        "x: " + "[" * 31 + "]" * 31,
        "a: &a {b: [1, 2]}\nc: *a\nd: {<<: *a, e: *a}\n",
        "a: " + "word " * 5000,
        "a: '" + "1" * 5000 + "'",
        "",
    ):
        (tmp_path / "top.yaml").write_text(text)
        compose_files(tmp_path, "top", tmp_path)
        assert parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize("read", [parse_yaml, lambda text: parse_yaml(text.encode())])
def test_every_other_reader_of_yaml_refuses_them(read: Callable[[str], object]) -> None:
    for text, words in TEXTS.values():
        if words == "nest":
            with pytest.raises(ValueError, match=words):
                read(text)


def test_yaml_is_read_in_one_place() -> None:
    """Others call it through `bounded`, but for files of npu-rl's own."""
    own = {
        "common/bounded.py",
        "common/yaml_documents/yaml_reader.py",
        "recipes/trainer_code/hydra_yaml.py",
    }
    room = Path(__file__).parents[2] / "npu_rl"
    reads = re.compile(r"yaml\.(safe_load|load|compose|parse)")
    found = {
        path.relative_to(room).as_posix() for path in room.rglob("*.py") if reads.search(path.read_text())
    }
    assert set(found) <= own
