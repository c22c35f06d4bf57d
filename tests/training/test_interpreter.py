from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.judgement.judge import MANIFEST_MISMATCH
from npu_rl.recipes.judgement.refused_recipe import RefusedRecipe
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.training.run.interpreter import Interpreter, probe, require
from npu_rl.training.run.prepare import _add_missing_packages


def interpreter(
    version: tuple[int, int, int] = (3, 11, 7), torch_npu: str | None = None, **packages: str | None
) -> Interpreter:
    return Interpreter("/opt/python", version, packages, torch_npu)


def test_a_real_interpreter_tells_its_packages() -> None:
    found = probe(sys.executable, ["pytest>=8", "no-such-package-of-anyone==1.0"])
    assert found.version == sys.version_info[:3]
    assert found.packages == {"pytest": pytest.__version__, "no-such-package-of-anyone": None}


def test_a_tree_on_the_path_does_not_answer_for_what_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code tree has dist-info folders of its own; a package of that name still has to be installed."""
    info = tmp_path / "laid_only-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: laid-only\nVersion: 9.9\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert probe(sys.executable, ["laid-only"]).packages == {"laid-only": None}


@pytest.mark.parametrize("program", ["/nowhere/python", "/bin/false"])
def test_what_is_no_interpreter_is_told(program: str) -> None:
    with pytest.raises(HostError) as caught:
        probe(program, ["torch"])
    assert program in str(caught.value) and "--python" in str(caught.value)


def test_everything_that_is_missing_is_told_at_once() -> None:
    with pytest.raises(HostError) as caught:
        require(
            interpreter(torch="2.5.1", ray=None, numpy="1.26.4"),
            ["torch==2.13.0", "ray==2.42.1", "numpy==1.26.4"],
        )
    text = str(caught.value)
    assert "2 of 3 packages" in text
    assert "torch==2.13.0: 2.5.1 is installed" in text
    assert "ray==2.42.1: not installed" in text
    assert "numpy" not in text
    assert caught.value.exit_code == 3


def test_a_local_version_and_a_development_one_count_as_what_they_are() -> None:
    require(
        Interpreter("/p", (3, 11, 7), {"torch": "2.13.0+cpu", "torch-npu": "2.5.1.post1.dev20250619"}),
        ["torch==2.13.0", "torch_npu>=2.5.1,<2.6"],
    )


def test_a_requirement_for_another_system_is_not_asked_for() -> None:
    require(interpreter(), ["pywin32==1; sys_platform == 'win32'"])


@pytest.mark.parametrize("version", [(3, 13, 0), (3, 14, 1), (3, 9, 18)])
def test_other_pythons_are_refused(version: tuple[int, int, int]) -> None:
    with pytest.raises(HostError) as caught:
        require(interpreter(version), [])
    text = str(caught.value)
    assert f"Python {version[0]}.{version[1]} can't run the training" in text
    assert "3.10 to 3.12" in text and "--python python3.12" in text


REQUIRED = [
    "torch==2.5.1",
    "torch_npu==2.5.1.post1",
    "ray[default]==2.42.1",
    "numpy<2",
    "dill",
    "peft==0.21.2",
]


def hint(found: Interpreter, required: list[str], **options: bool) -> str:
    with pytest.raises(HostError) as caught:
        require(found, required, **options)
    return str(caught.value.hint)


def installed(line: str) -> list[str]:
    """The packages that a command installs."""
    words = shlex.split(line)
    return [word for word in words[words.index("install") + 1 :] if not word.startswith("-")]


@pytest.mark.parametrize(
    ("found", "npu"),
    [
        (
            interpreter(torch_npu=None, numpy="1.26.4"),
            True,
        ),  # a recipe for NPUs, in an environment that has nothing
        (interpreter(torch_npu="2.5.1.post1", torch="2.13.0", numpy="1.26.4"), True),
        (
            interpreter(torch_npu="2.5.1.post1", torch="2.13.0", numpy="1.26.4"),
            False,
        ),  # a rehearsal, in an image
    ],
)
def test_beside_torch_npu_pip_chooses_no_torch(found: Interpreter, npu: bool) -> None:
    said = hint(found, REQUIRED, npu=npu)
    (line,) = [line for line in said.splitlines() if " -m pip install " in line]
    assert line.startswith("/opt/python -m pip install --no-deps ")
    assert installed(line) == ["ray==2.42.1", "dill", "peft==0.21.2"]
    assert "npu-rl[" not in said and "--python PATH" in said
    assert "torch and torch_npu come with the image or host" in said


def test_where_only_the_images_packages_lack_nothing_is_to_be_installed() -> None:
    said = hint(interpreter(torch="2.13.0"), ["torch==2.5.1"], npu=True)
    assert "pip" not in said and said.startswith("torch comes with the image")
    assert said.endswith("Or name an interpreter that has them: --python PATH")


def test_on_a_cpu_the_missing_ones_are_named_as_they_are_required() -> None:
    said = hint(interpreter(numpy="1.26.4"), ["torch==2.13.0", "numpy==1.26.4", "ray==2.42.1"])
    assert installed(said.splitlines()[0].rstrip(",")) == ["torch==2.13.0", "ray==2.42.1"]


def test_npu_rls_own_interpreter_can_take_the_extra() -> None:
    found = Interpreter(sys.executable, (3, 11, 7), {})
    said = hint(found, ["torch==2.13.0"])
    assert installed(said.splitlines()[0].rstrip(",")) == ["npu-rl[rehearsal]"]
    assert said.startswith(f"Install them there: {shlex.quote(sys.executable)} -m pip")


def test_a_real_interpreter_tells_whether_it_has_torch_npu(tmp_path: Path) -> None:
    assert probe(sys.executable, ["pytest"]).torch_npu is None
    site = tmp_path / "torch_npu-2.5.1.post1.dist-info"
    site.mkdir()
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.5.1.post1\n")
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(tmp_path))} exec {shlex.quote(sys.executable)} "$@"\n'
    )
    python.chmod(0o755)
    assert probe(str(python), ["pytest"]).torch_npu == "2.5.1.post1"


def test_for_gpus_the_packages_themselves_are_named_with_their_urls() -> None:
    """The extra `rehearsal` pins another torch than that for which a stack's wheels are compiled."""
    wheel = "https://example.org/flash_attn-2.4.2.whl"
    lacking = Interpreter(sys.executable, (3, 12, 3), {"vllm": None, "flash_attn": None}, None)
    with pytest.raises(HostError) as caught:
        require(lacking, ["vllm==0.8.5", f"flash_attn @ {wheel}"], extra="")
    assert f"-m pip install vllm==0.8.5 'flash_attn @ {wheel}'" in str(caught.value)
    assert "npu-rl[" not in str(caught.value)


@pytest.mark.parametrize(("rule", "reported"), [("unknown-key", True), (MANIFEST_MISMATCH, False)])
def test_missing_packages_are_reported_with_a_refusal_unless_they_are_another_stacks(
    rule: str, reported: bool
) -> None:
    loaded = load_recipe("quickstart")
    found = loaded.finding(rule, Severity.ERROR, ("manifest",), "a fact", "do this")
    refusal = RefusedRecipe(loaded.recipe, [found], [found])

    def find() -> Interpreter:
        raise HostError("The training interpreter lacks vllm", hint="Install it")

    _add_missing_packages(refusal, find)
    assert ("The training interpreter lacks vllm." in (refusal.why or "").splitlines()) is reported
    assert (refusal.hint or "").splitlines() == (["Do this", "Install it"] if reported else ["Do this"])
