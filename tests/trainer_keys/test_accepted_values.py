"""The values that code accepts, read from the code: what it refuses is refused, and nothing else."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.recipes.trainer_code.config_tree import ConfigEntry, ConfigTree
from npu_rl.recipes.trainer_code.source_index import Module, SourceIndex
from npu_rl.recipes.trainer_keys.accepted_values import AcceptedValues
from npu_rl.recipes.trainer_keys.resolution import RefusedValue
from npu_rl.recipes.trainer_keys.value_flow import ValueFlow, ValueUse
from tests.code_trees import lay
from tests.support import present

KEY = "data.the_kind"
TREE = ConfigTree({name: ConfigEntry(None, name == "data", "f", 1) for name in ("data", KEY)}, ())
RAISE = "raise ValueError(config.data.the_kind)"
Check = Callable[..., RefusedValue | None]


@pytest.fixture
def refused(tmp_path: Path) -> Check:
    """Whether code that reads `data.the_kind`, given as files or as one function's body, refuses a value."""

    def check(value: Any, body: str | dict[str, str]) -> RefusedValue | None:
        if isinstance(body, str):
            body = {"verl/main.py": f"{HEAD}\ndef run(config):\n{indent(body, '    ')}\n"}
        sources = SourceIndex(lay(tmp_path / "code", body))
        return AcceptedValues(sources, "verl/main.py", TREE).check_key(KEY, value, [])

    return check


HEAD = """
from enum import Enum
NAMES = {"one": 1, "two": 2}
ALLOWED = ("one", "two")
GROWING = ["one", "two"]
GROWING.append("three")
class Kind(str, Enum):
    ONE = "one"
    TWO = "two"
class Open(str, Enum):
    ONE = "one"
    @classmethod
    def _missing_(cls, value):
        return cls.ONE
"""
K = "config.data.the_kind"
REFUSING = {
    "chain": f"if {K} == 'one':\n    a()\nelif {K} in ('two', 'zwei'):\n    b()\nelse:\n    {RAISE}",
    "returns": f"if {K} == 'one':\n    return 1\nif {K} == 'two':\n    return 2\n{RAISE}",
    "after others": f"if x:\n    return 0\nif {K} == 'one':\n    return 1\nif {K} == 'two':\n    return 2\n{RAISE}",
    "not in": f"if {K} not in ['one', 'two']:\n    {RAISE}",
    "in a constant": f"if {K} not in ALLOWED:\n    {RAISE}",
    "in a local": f"names = ['one', 'two']\nif {K} not in names:\n    {RAISE}",
    "in the keys": f"if {K} not in NAMES.keys():\n    {RAISE}",
    "asserted": f"assert {K} in ALLOWED, 'x'",
    "asserted by or": f"assert {K} == 'one' or {K} == 'two'",
    "indexed": f"return NAMES[{K}]",
    "enumeration": f"return Kind({K})",
    "members": f"if {K} == Kind.ONE:\n    a()\nelif {K} == Kind.TWO.value:\n    b()\nelse:\n    {RAISE}",
    "alias": f"kind = {K}\nif kind not in ALLOWED:\n    {RAISE}",
    "get": "kind = config.data.get('the_kind', 'one')\nassert kind in ALLOWED",
    "item": "assert config['data']['the_kind'] in ALLOWED",
    "getattr": "assert getattr(config.data, 'the_kind', None) in ALLOWED",
    "not None": f"if {K} is not None:\n    if {K} not in ALLOWED:\n        {RAISE}",
    "a method": f"with no_grad():\n    assert {K} in ALLOWED",
}
ACCEPTING = {
    "a default": f"if {K} == 'one':\n    a()\nelse:\n    b()",
    "another test between": f"if {K} == 'one':\n    a()\nelif callable({K}):\n    b()\nelse:\n    {RAISE}",
    "a list that grows": f"if {K} not in GROWING:\n    {RAISE}",
    "lower": f"kind = {K}.lower()\nif kind not in ALLOWED:\n    {RAISE}",
    "cut": f"kind = {K}[:-1] if {K}.endswith('s') else {K}\nif kind not in ALLOWED:\n    {RAISE}",
    "changed before": f"kind = {K}\nkind = kind + 'x'\nif kind not in ALLOWED:\n    {RAISE}",
    "caught": f"try:\n    assert {K} in ALLOWED\nexcept AssertionError:\n    pass",
    "an enumeration with a rest": f"return Open({K})",
    "looked up with a default": f"return NAMES.get({K}, 3)",
    "looked up if it is there": f"return NAMES[{K}] if {K} in NAMES else 0",
    "guarded index": f"if {K} in NAMES:\n    return NAMES[{K}]\nreturn 0",
    "an unknown collection": f"if {K} not in elsewhere():\n    {RAISE}",
    "raises on something else": f"if {K} is None:\n    return 0\nif missing():\n    {RAISE}\nreturn open({K})",
    "another's key": "assert config.model.the_kind in ALLOWED",
    "its own name only": "assert the_kind in ALLOWED",
    "named before": f"if {K} == 'other':\n    return 1\nassert {K} in ALLOWED",
}


@pytest.mark.parametrize("body", REFUSING.values(), ids=REFUSING)
def test_a_value_the_code_raises_on(refused: Check, body: str) -> None:
    found = present(refused("twoo", body))
    assert set(found.names) >= {"one", "two"}
    assert found.where.startswith("verl/main.py:")
    assert refused("one", body) is None and refused("two", body) is None


@pytest.mark.parametrize("body", ACCEPTING.values(), ids=ACCEPTING)
def test_a_value_that_may_be_right(refused: Check, body: str) -> None:
    assert refused("other", body) is None


@pytest.mark.parametrize("value", [None, {}, {"a": 1}, "${oc.env:X}", "/a/path", "two words", "", ["one", 3]])
def test_what_is_no_name_is_not_judged(refused: Check, value: object) -> None:
    assert refused(value, f"assert {K} in ALLOWED") is None


def test_a_name_that_is_only_there_to_be_refused(refused: Check) -> None:
    for why in ("", "    # it needs all logits\n"):
        full = f"if {K} == 'full':\n{why}    raise NotImplementedError\n"
        found = refused("full", f"if {K} == 'one':\n    return 1\n{full}{RAISE}")
        assert present(found).names == ("one",)


def test_each_item_of_a_list(refused: Check) -> None:
    each = "    if kind == 'old':\n        warn()\n    else:\n        assert kind in ALLOWED"
    body = f"for kind in {K}:\n{each}"
    assert refused(["one", "old", "two"], body) is None
    found = present(refused(["one", "twoo"], body))
    assert found.value == "twoo" and set(found.names) == {"one", "two", "old"}


@pytest.mark.parametrize("last", ["if part.strip()", ""])
def test_each_part_between_commas(refused: Check, last: str) -> None:
    """As in verl's rollout_rs (trainer/ppo/rollout_corr_helper.py:244@7aed6b230776)."""
    body = f"""given = {K}
parts = [part.strip() for part in given.split(",") {last}]
for part in parts:
    if part not in ALLOWED:
        {RAISE}"""
    for right in ("one", "one,two", "two,"):
        assert refused(right, body) is None, right
    for wrong in ("three", "one,three"):
        found = refused(wrong, body)
        assert (found is not None) is bool(last), "any other list is not followed"
        assert found is None or set(found.names) == {"one", "two"}


FLOW = {
    "verl/main.py": """
        from verl.lib import dispatch, Thing
        from verl import lib
        class Worker:
            def __init__(self, config):
                self.config = config
            def run(self):
                {use}
    """,
    "verl/lib.py": """
        REGISTRY = {}
        def register(name):
            def add(cls):
                REGISTRY[name] = cls
                return cls
            return add
        def dispatch(a, kind, *, by_name=None):
            return find(kind)
        def find(kind):
            kind = kind.value if isinstance(kind, object) else kind
            if kind not in REGISTRY:
                raise ValueError(kind)
            return REGISTRY[kind]
        class Thing:
            supported = ["one", "two"]
            def __init__(self, kind):
                self.kind = kind
            def go(self):
                assert self.kind in self.supported
        @register("one")
        class One:
            pass
    """,
    "verl/more.py": 'from verl.lib import register\n@register("two")\nclass Two:\n    pass\n',
    "verl/others.py": 'def register(name):\n    return name\n@register("three")\nclass Three:\n    pass\n',
}


LATER = """
            def later(self):
                assert self.kind in ['one', 'two']
"""


@pytest.mark.parametrize(
    "use",
    [
        "dispatch(1, self.config.data.the_kind)",
        "lib.dispatch(1, kind=self.config.data.the_kind)",
        "Thing(self.config.data.the_kind).go()",
        "self.kind = self.config.data.the_kind",
    ],
)
def test_a_value_is_followed(refused: Check, use: str) -> None:
    files = {name: text.replace("{use}", use) for name, text in FLOW.items()}
    if use.startswith("self.kind"):
        files["verl/main.py"] += LATER
    found = present(refused("three", files))
    assert set(found.names) == {"one", "two"}, "another module's register is another one"
    assert refused("two", files) is None


@pytest.mark.parametrize("as_keyword", [True, False])
def test_an_ending_that_is_cut_off_on_the_way(refused: Check, as_keyword: bool) -> None:
    """As verl 0.8 does with the kinds of a KL estimate, k3 and k3+ (trainer/ppo/core_algos.py:2139@7aed6b230776)."""
    given = "by=kind" if as_keyword else "kind"
    files = {
        "verl/main.py": f"""
            from verl.lib import names
            def run(config):
                penalty(config.data.the_kind)
            def penalty(the):
                kind = the[:-1] if the.endswith("+") else the
                return find({given})
            def find(by):
                if by == "one":
                    return 1
                assert by == "two"
        """
    }
    for right in ("one", "one+", "two+"):
        assert refused(right, files) is None, right
    for wrong in ("three", "three+", "one++", "one-"):
        assert set(present(refused(wrong, files)).names) == {"one", "two"}, wrong


def test_files_of_a_backend_that_does_not_run_name_nothing(tmp_path: Path) -> None:
    """verl 0.9's engine automodel compares a strategy of its own with ddp."""
    files = {
        "verl/workers/engine/fsdp/engine.py": f"def run(config):\n    assert {K} in ['one', 'two']\n",
        "verl/workers/engine/automodel/utils.py": "def go(the_kind):\n    if the_kind == 'ddp':\n        return 1\n",
    }
    sources = SourceIndex(lay(tmp_path, files))
    for backends, refuses in ((("fsdp", "megatron"), True), (("", ""), False)):
        found = AcceptedValues(sources, "verl/main.py", TREE, backends).check_key(KEY, "ddp", [])
        assert (found is not None) is refuses


@pytest.mark.parametrize("program", ["fully_async_policy", "one_step_off_policy"])
def test_a_program_of_its_own_judges_only_its_own_run(tmp_path: Path, program: str) -> None:
    """verl 0.8's fully asynchronous rollouter asserts rollout.mode is async; main_ppo never runs it."""
    folder = f"verl/experimental/{program}"
    files = {f"{folder}/rollouter.py": f"def run(config):\n    assert {K} in ['sync', 'async']\n"}
    sources = SourceIndex(lay(tmp_path, files))
    for main, refuses in ((f"{folder}/main.py", True), ("verl/trainer/main_ppo.py", False)):
        found = AcceptedValues(sources, main, TREE).check_key(KEY, "foo", [])
        assert (found is not None) is refuses


def test_a_registry_with_a_name_that_cannot_be_read_is_open(refused: Check) -> None:
    use = "dispatch(1, self.config.data.the_kind)"
    files = {name: text.replace("{use}", use) for name, text in FLOW.items()}
    files["verl/more.py"] += "@register(some_name())\nclass Other:\n    pass\n"
    assert refused("three", files) is None


CLASS = """
class C:
    def __post_init__(self):
        super().__post_init__()
        if self.other and self.more:
            raise ValueError
        if self.x is not None and self.x <= 0:
            raise ValueError
        assert 0.0 <= self.share < 1.0
        if self.rare:
            assert self.y > 3
        if self.stop:
            return
        assert self.z > 3
        self.check()
    def check(self):
        if not 0 < self.top <= 1:
            raise ValueError
"""


def refused_by(folder: Path, text: str, name: str, value: object) -> RefusedValue | None:
    """Whether the class C of a module refuses a value of its field."""
    sources = SourceIndex(lay(folder, {"m.py": text}))
    found: Any = present(sources.find("m.C"))
    return AcceptedValues(sources, "m.py", ConfigTree({}, ())).check_library_key(name, value, [found])


@pytest.mark.parametrize(
    ("name", "value", "refuses"),
    [
        ("x", 0, True), ("x", -1, True), ("x", 1, False), ("share", 1.0, True), ("share", 0.5, False),
        ("share", -0.1, True),
        ("y", 0, False), ("z", 0, False), ("top", 0, False), ("other", True, False), ("unknown", -5, False),
    ],
)  # fmt: skip
def test_numbers_are_refused_only_where_a_class_always_refuses_them(
    tmp_path: Path, name: str, value: object, refuses: bool
) -> None:
    """The code reaches y and z only sometimes, and so what comes after z."""
    assert (refused_by(tmp_path, CLASS, name, value) is not None) == refuses


def test_a_method_that_is_always_called_counts(tmp_path: Path) -> None:
    text = CLASS.replace("        if self.stop:\n            return\n", "")
    refused = present(refused_by(tmp_path, text, "top", 2))
    assert refused.certain and str(refused) == "must not be 2"


@given(st.text(alphabet="abif x=:()'\n\t,[]raise.config_datwhl", max_size=120))
def test_any_code_is_walked_without_a_fault(text: str) -> None:
    try:
        tree = ast.parse(f"def f(config):\n    kind = config.data.kind\n    {text}\n")
    except (SyntaxError, ValueError):
        return
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    use = ValueUse(Module("m", "m.py", False, {}, ()), function, None, {"config.data.kind": 9e9})
    for _, walked in ValueFlow(SourceIndex(Path("/nowhere"))).follow(use):
        walked.find_refusal("x")
        walked.compared_names()
