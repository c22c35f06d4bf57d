"""Every caller that opens a file is known, and those of strangers' files are bounded and mutated."""

from __future__ import annotations

import ast
from functools import cache

from tests.hostile import test_file_mutations, test_mutations
from tests.hostile.file_calls import calls_in, file_calls
from tests.hostile.file_readers import READERS, RUN, STRANGER, WITNESSES

PARSERS = {
    "ast.parse",
    "json.loads",
    "pickletools.genops",
    "yaml.parse",
}  # of text that another module has read


@cache
def calls_of_modules() -> dict[str, tuple[set[str], set[str]]]:
    return {module: calls for module, calls in file_calls().items() if not module.startswith(WITNESSES)}


def test_every_caller_has_a_row_and_every_row_a_caller() -> None:
    calls = calls_of_modules()
    assert sorted(calls.keys() - READERS.keys()) == [], "add a row to tests/hostile/file_readers.py"
    assert sorted(READERS.keys() - calls.keys()) == []


def test_a_call_that_is_not_bounded_has_a_reason() -> None:
    found = calls_of_modules().items()
    assert {module: calls for module, (_, calls) in found if calls and not READERS[module].why} == {}
    assert {module for module, (_, calls) in found if not calls and READERS[module].why} == set()


def test_a_reader_of_strangers_files_has_a_kind() -> None:
    tests = (*test_mutations.KINDS, *test_file_mutations.KINDS, *test_file_mutations.TORCH_KINDS)
    kinds = {kind.__name__ for kind in tests}
    strangers = {module for module, row in READERS.items() if row.by == STRANGER and row.why != RUN}
    opened = calls_of_modules().items()
    opens = {module for module, (bounded, others) in opened if bounded or others - PARSERS}
    assert {module for module in strangers & opens if READERS[module].kind not in kinds} == set()
    assert {row.kind for row in READERS.values()} - {""} <= kinds


def test_the_callers_are_found() -> None:
    text = """
def f(path):
    with open(path) as a, path.open("rb") as b, path.open("wb"), open(path, "ab"), os.open(path, os.O_WRONLY):
        return yaml.safe_load(a), bounded.read_file(path), RunRecord.open(path), np.load(path), path.read_text()
"""
    found = calls_in(ast.parse(text))
    assert found == ({"read_file"}, {"open", ".open", "yaml.safe_load", "np.load", ".read_text"})
