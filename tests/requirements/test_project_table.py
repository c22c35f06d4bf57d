"""The table [project] of a pyproject.toml."""

from __future__ import annotations

from npu_rl.stack.requirements.project_table import read_project_table
from npu_rl.stack.requirements.reading import Reading

# In the form of Megatron-LM's at core_v0.16.1.
MEGATRON = """
[build-system]
requires = ["setuptools<80.0.0", "packaging>=24.2"]
[project]
name = "megatron-core"
requires-python = ">=3.10"
dependencies = ["torch>=2.6.0", "numpy", "packaging>=24.2"]
[project.optional-dependencies]
mlm = ["einops~=0.8", "wandb"]
[dependency-groups]
test = ["pytest==8.3.5"]
"""


def base(text: str) -> Reading:
    return read_project_table(text, ())[""]


def test_dependencies_and_extras_and_neither_builds_nor_groups() -> None:
    found = read_project_table(MEGATRON, ("mlm", "gpu"))
    assert found[""] == Reading(("python>=3.10", "torch>=2.6.0", "packaging>=24.2"))
    assert found["mlm"] == Reading(("einops~=0.8",))
    assert found["gpu"].unread == ("optional-dependencies.gpu can't be read",)


def test_dependencies_that_the_build_backend_finds() -> None:
    dynamic = '[project]\ndynamic = ["version", "dependencies"]\n'
    named = f'{dynamic}[tool.setuptools.dynamic]\ndependencies = {{file = ["core/requirements.txt"]}}'
    assert base(named) == Reading(includes=("core/requirements.txt",))
    assert base(dynamic) == Reading()  # setup.py has them, which is read by itself
    hatch = f'[build-system]\nbuild-backend = "hatchling.build"\n{dynamic}'
    assert base(hatch).unread == ("dependencies, which hatchling.build finds can't be read",)
    assert base('[tool.poetry.dependencies]\na = "^1"').unread == ("tool.poetry.dependencies can't be read",)


def test_values_of_another_type_are_named() -> None:
    for text in ("dependencies = 1", "dependencies = [1]", "requires-python = 3", 'requires-python = "3.x"'):
        reading = base(f"[project]\n{text}")
        assert reading.unread and not reading.bounds, text
    assert base("project = 1\ntool = []") == Reading()
