"""setup.py: literals and names of the module are read; what is computed is named with its line, and nothing is run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.stack.requirements.reading import Reading
from npu_rl.stack.requirements.setup_script import read_setup_script

# In the form of verl's setup.py at 7aed6b230776.
VERL = """
from setuptools import setup
install_requires = ["accelerate", "numpy<2.0.0", "ray[default]>=2.41.0"]
VLLM_REQUIRES = ["tensordict>=0.8.0,<=0.10.0,!=0.9.0", "vllm>=0.8.5,<=0.12.0"]
extras_require = {"vllm": VLLM_REQUIRES, "trl": ["trl<=0.9.6"], "test": made()}
setup(name="verl", install_requires=install_requires, extras_require=extras_require, python_requires=">=3.10")
"""


def base(text: str) -> Reading:
    return read_setup_script(text, ())[""]


def test_lists_of_names_and_extras() -> None:
    found = read_setup_script(VERL, ("vllm", "trl", "test", "gpu"))
    assert found[""] == Reading(("python>=3.10", "numpy<2.0.0", "ray[default]>=2.41.0"))
    assert found["vllm"].bounds == ("tensordict>=0.8.0,<=0.10.0,!=0.9.0", "vllm>=0.8.5,<=0.12.0")
    assert found["trl"].bounds == ("trl<=0.9.6",)
    assert found["test"].unread == ("extra test is computed (line 5)",)
    assert found["gpu"].unread == ("extra gpu is computed (line 5)",)
    assert set(read_setup_script(VERL, ())) == {""}


@pytest.mark.parametrize(
    ("text", "bounds", "unread"),
    [
        ("setup(install_requires=get())", (), ("install_requires is computed (line 1)",)),
        ("A = ['a<1']\nA.append('b<1')\nsetup(install_requires=A)", (), ("install_requires is computed (line 3)",)),
        ("if x:\n  A = ['a<1']\nsetup(install_requires=A)", (), ("install_requires is computed (line 3)",)),
        ("setup(install_requires=['a<1', get(), *more])", ("a<1",),
         ("2 of 3 entries of install_requires are computed (line 1)",)),
        ("setup(install_requires=['a<1', 'b @ https://u:p@x/y'])", ("a<1",),
         ("install_requires, entry 2: b comes from a URL",)),
        ("setup(python_requires='3.x')", (), ("python_requires is not a range of versions",)),
        ("setup(**made)", (), ("some keywords of setup() are computed",)),
        ("import setuptools\nsetuptools.setup(install_requires=('a<1',))", ("a<1",), ()),
    ],
)  # fmt: skip
def test_what_is_computed_is_named_and_not_guessed(
    text: str, bounds: tuple[str, ...], unread: tuple[str, ...]
) -> None:
    assert base(text) == Reading(bounds, (), unread)


def test_the_files_that_megatron_reads_are_included() -> None:
    """In the form of Megatron-LM's at core_v0.12.1."""
    text = """
def req_file(filename, folder="requirements"):
    environment = os.getenv("PY_ENV", "pytorch_25.03")
install_requires = req_file("requirements.txt")
setuptools.setup(install_requires=install_requires)
"""
    files = ("requirements/pytorch_25.03/requirements.txt", "megatron/core/requirements.txt")
    assert base(text) == Reading(includes=files)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_any_text_is_read_or_named(text: str) -> None:
    base(f"A = ['a<1']\n{text}\nsetup(install_requires=A)")
