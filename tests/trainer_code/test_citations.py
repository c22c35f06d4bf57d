"""Where a rule's code stands: in a tree, replaced at run time, or in the pins of a manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.trainer_code.citations import CitedCode, Place
from tests.code_trees import lay

ROLLOUT, PATCH = "verl/workers/rollout/spmd.py", "verl_patches/workers/rollout.py"
PREFILL = Place(ROLLOUT, "too few tokens", ("55e3c5b",))
VERL = {
    "verl/trainer/main_npu.py": "import os\nfrom verl_patches.workers import rollout\n",
    ROLLOUT: """
        import os

        class Rollout:
            def __init__(self, config):
                def inner():
                    return None
                if config.tokens < 8:
                    raise ValueError(
                        "too few tokens"
                    )

            def generate(self):
                "another text"

        def convert(config):
            "made here"
        """,
}
PATCHES = {
    "verl_patches/__init__.py": "",
    PATCH: """
        from verl.workers.rollout.spmd import Rollout

        def __init__(self, config):
            self.engine = LLM(additional_config={})

        Rollout.__init__ = __init__
        """,
}


def look(code: Path, place: Place, module: str = "verl.trainer.main_npu") -> tuple[str, str]:
    found = CitedCode(code, (), module).find(place)
    return found.where, found.why


def test_a_place_is_found_with_its_line(tmp_path: Path) -> None:
    assert look(lay(tmp_path, VERL), PREFILL) == (f"{ROLLOUT}:10", "")


def test_a_file_or_text_that_is_not_there(tmp_path: Path) -> None:
    code = lay(tmp_path, VERL)
    assert look(code, Place("vllm/config.py", "x"))[1] == "not in this tree: vllm/config.py"
    assert look(code, Place(ROLLOUT, "moved"))[1] == f"not in this tree: 'moved' in {ROLLOUT}"


def test_the_first_place_that_holds_counts(tmp_path: Path) -> None:
    cited = CitedCode(lay(tmp_path, VERL))
    assert cited.find(Place("gone.py", "x"), PREFILL).where == f"{ROLLOUT}:10"
    assert cited.find(Place("gone.py", "x"), Place("too.py", "x")).why == "not in this tree: gone.py"


@pytest.mark.parametrize(
    ("given", "replaced"),
    [
        ("Rollout.__init__ = __init__", True),
        ("Rollout.__init__ = wrapper(Rollout.__init__)", False),
        ("if Rollout.__init__ == __init__: pass", False),
    ],
)
def test_a_function_that_is_replaced_at_run_time(tmp_path: Path, given: str, replaced: bool) -> None:
    patch = f"from verl.workers.rollout.spmd import Rollout\nif 1:\n {given}\n"
    why = look(lay(tmp_path, VERL, {PATCH: patch}), PREFILL)[1]
    assert why == (f"{ROLLOUT} is replaced at run time by {PATCH}:3" if replaced else "")


def test_what_the_replacement_has_too_still_counts(tmp_path: Path) -> None:
    code = lay(tmp_path, VERL, {PATCH: PATCHES[PATCH] + '\n        raise ValueError("too few tokens")\n'})
    assert look(code, PREFILL)[0].startswith(f"{PATCH}:")


def test_patches_that_the_entry_point_does_not_import_replace_nothing(tmp_path: Path) -> None:
    code = lay(tmp_path, VERL, PATCHES, {"verl/trainer/main_ppo.py": "# verl_patches are for others\n"})
    assert look(code, PREFILL, "verl.trainer.main_ppo")[1] == ""
    assert look(code, PREFILL)[1] != ""


def test_a_text_that_must_not_be_there(tmp_path: Path) -> None:
    place = Place(ROLLOUT, "additional_config=", absent=True)
    code = lay(tmp_path, VERL)
    assert look(code, place)[1] == ""
    lay(tmp_path, PATCHES)
    assert look(code, place)[1] == f"this tree has 'additional_config=' ({PATCH}:5)"


@pytest.mark.parametrize(
    ("pins", "where"),
    [
        (["55e3c5bc09c85dba09f736eef476f110ad641b75"], f"{ROLLOUT}@55e3c5b"),
        (["refs/tags/v0.5.0", "55e3c5bc09c85dba09f736eef476f110ad641b75"], f"{ROLLOUT}@55e3c5b"),
        (["54c9b7364c2d188b2ba4107404cfa3c2b446df19"], None),
        ([], None),
    ],
)
def test_without_a_workspace_the_pins_decide(pins: list[str], where: str | None) -> None:
    found = CitedCode(None, pins).find(PREFILL)
    assert found.holds is (where is not None)
    assert found.where == (where or ROLLOUT)
    assert found.holds or found.why == f"{ROLLOUT} was read at 55e3c5b, which the manifest doesn't pin"
