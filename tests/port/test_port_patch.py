"""The judgement of hunks: what each state means, and what must never be called one."""

from __future__ import annotations

import pytest

from tests.port.judging import MadeHistory, judged, only

OLD = """\
import os


class Rollout:
    def __init__(self, config):
        self.config = config
        self.length = config.length
        self.engine = make_engine(config)
        self.ready = True

    def generate(self, prompts):
        self.wait()
        self.check(prompts)
        batch = self.prepare(prompts)
        result = self.engine.run(batch)
        self.seen += 1
        self.last = result
        return result


class Reference:
    def generate(self, prompts):
        self.wait()
        self.check(prompts)
        batch = self.prepare(prompts)
        result = self.engine.run(batch)
        self.seen += 1
        self.last = result
        return result
"""
HINTED = OLD.replace("self.engine.run(batch)", "self.engine.run(batch, hint=1)", 1)
"""A change in Rollout.generate, whose lines Reference.generate has, too."""
LOGGED = OLD.replace("        self.ready = True\n", "        self.ready = True\n        log_engine(self)\n")
"""An addition in Rollout.__init__."""
METHOD = '    def idle(self):\n        """Wait for requests."""\n        return self.engine.idle()\n\n'


def test_exact() -> None:
    ported = judged(OLD, HINTED, OLD + "\n\ndef more():\n    return 1\n")
    hunk = only(ported)
    assert (hunk.state, hunk.why, hunk.inside) == ("exact", "", "Rollout.generate")
    assert ported.is_clean and not ported.is_upstream
    (file,) = ported.files
    assert file.after == (HINTED + "\n\ndef more():\n    return 1\n").encode()


@pytest.mark.parametrize(
    ("old", "patched"),
    [("", "import os\n"), ("one\n", "one\ntwo\n"), ("x = 1\nx = 1\nx = 1\n", "x = 1\nx = 2\nx = 1\n")],
)
@pytest.mark.parametrize("path", ["pkg/__init__.py", "m.yaml", "m.txt"])
def test_a_file_that_did_not_change(old: str, patched: str, path: str) -> None:
    """It may be empty, as many `__init__.py` are."""
    ported = judged(old, patched, old, path)
    assert only(ported).state == "exact"
    assert ported.files[0].after == patched.encode()


def test_moved() -> None:
    hunk = only(judged(OLD, HINTED, "import sys\n" + OLD))
    assert (hunk.state, hunk.new_line, hunk.why) == ("moved", hunk.old_line + 1, "+1 lines")


def test_of_two_twins_the_one_of_its_own_class() -> None:
    """At its line stand the same lines of another class now."""
    first, second = OLD.split("\n\nclass Reference")
    swapped = "import os\n\n\nclass Reference" + second + "\n\n" + first.removeprefix("import os\n\n\n")
    ported = judged(OLD, HINTED, swapped)
    assert only(ported).state == "moved"
    after = (ported.files[0].after or b"").decode()
    assert "hint=1" in after[after.index("class Rollout") :]


def test_a_twin_of_another_class_is_a_conflict() -> None:
    new = OLD.replace("        result = self.engine.run(batch)\n", "", 1)
    hunk = only(judged(OLD, HINTED, new))
    assert hunk.state == "conflict"
    assert hunk.why == "its lines are at line 22, Reference.generate; it is for Rollout.generate"


def test_a_renamed_function_is_a_conflict_that_says_so() -> None:
    old = OLD.split("\n\nclass Reference")[0] + "\n"
    hunk = only(judged(old, old.replace("(batch)", "(batch, 1)"), old.replace("def generate", "def sample")))
    assert hunk.state == "conflict" and "Rollout.sample; it is for Rollout.generate" in hunk.why


def test_merged_where_only_the_lines_around_it_differ() -> None:
    new = OLD.replace("        self.length = config.length\n", "        self.length = config.max_length\n")
    new = new.replace(
        "        self.config = config\n", "        self.config = config\n        self.seed = 1\n"
    )
    ported = judged(OLD, LOGGED, new)
    assert only(ported).state == "merged" and ported.is_clean
    expected = new.replace(
        "        self.ready = True\n", "        self.ready = True\n        log_engine(self)\n"
    )
    assert ported.files[0].after == expected.encode()


def test_merged_into_a_function_that_has_moved() -> None:
    head, first, second = (
        OLD.partition("class Rollout")[0],
        *OLD.partition("class Rollout")[2].split("\n\n\nclass Reference"),
    )
    changed = second.replace("prepare(prompts)", "prepare(prompts, 2)")
    new = f"{head}class Reference{changed}\n\nclass Rollout{first}\n".replace(
        "self.ready = True", "self.ready = 1", 1
    )
    patched = OLD.replace("self.engine = make_engine(config)", "self.engine = make_engine(config, 1)")
    assert only(judged(OLD, patched, new)).state == "merged"


def test_both_changed_one_line() -> None:
    new = OLD.replace("self.engine = make_engine(config)", "self.engine = make_engine(config, device)")
    patched = OLD.replace("self.engine = make_engine(config)", "self.engine = make_engine(config, hint)")
    ported = judged(OLD, patched, new)
    hunk = only(ported)
    assert hunk.state == "conflict" and not ported.is_clean
    assert hunk.why == (
        "the new version has changed what it changes: line 8 was `self.engine = make_engine(config)`"
    )
    after = (ported.files[0].after or b"").decode().splitlines()
    start, middle, end = (next(i for i, line in enumerate(after) if line.startswith(mark)) for mark in "<=>")
    assert (after[start], after[end]) == ("<<<<<<< upstream v2", ">>>>>>> 0001-mine.patch")
    assert "        self.engine = make_engine(config, device)" in after[start:middle]
    assert "        self.engine = make_engine(config, hint)" in after[middle:end]


def test_one_conflict_leaves_the_other_hunks() -> None:
    patched = HINTED.replace("import os\n", "import os.path\n")
    new = OLD.replace("import os\n", "import sys\n")
    ported = judged(OLD, patched, new)
    assert [hunk.state for hunk in ported.hunks] == ["conflict", "exact"]
    assert b"hint=1" in (ported.files[0].after or b"")


def test_upstream_with_its_commit() -> None:
    history = MadeHistory()
    hunk = only(judged(OLD, HINTED, "import sys\n" + HINTED, history=history))
    assert (hunk.state, hunk.commit) == ("already upstream", "added")
    assert history.asked == [[b"        result = self.engine.run(batch, hint=1)\n"]]


def test_a_deletion_that_upstream_made_too() -> None:
    patched = OLD.replace("        self.check(prompts)\n", "", 1)
    history = MadeHistory()
    hunk = only(judged(OLD, patched, "import sys\n" + patched, history=history))
    assert (hunk.state, hunk.commit) == ("already upstream", "lost")


@pytest.mark.parametrize(
    ("patched", "new"),
    [
        # The removed line is gone, and the new one never came.
        (HINTED, OLD.replace("        result = self.engine.run(batch)\n", "        result = None\n", 1)),
        # The new line came, in another function.
        (HINTED, OLD.replace(" = True", " = True\n        result = self.engine.run(batch, hint=1)")),
        # A lone return came, somewhere else in the function.
        (
            OLD.replace("        self.ready = True\n", "        self.ready = True\n        return\n"),
            OLD.replace("self.length = config.length", "if not config:\n            return"),
        ),
        # Half of it came.
        (
            OLD.replace("self.config = config", "self.config = dict(config)").replace(" = True", " = 7"),
            OLD.replace("self.config = config", "self.config = dict(config)"),
        ),
    ],
)  # fmt: skip
def test_never_upstream_by_coincidence(patched: str, new: str) -> None:
    assert "already upstream" not in {hunk.state for hunk in judged(OLD, patched, new).hunks}


def test_what_it_adds_came_elsewhere_in_its_function() -> None:
    """Its old lines stand, so that it would be there twice."""
    new = OLD.replace(
        "        self.config = config\n", "        log_engine(self)\n        self.config = config\n"
    )
    hunk = only(judged(OLD, LOGGED, new))
    assert hunk.state == "conflict"
    assert hunk.why == "the new version has the lines that it adds, at line 6"


def test_two_places_of_one_function() -> None:
    old = "def f():\n" + "    step(1)\n    wait()\n" * 4
    lines = old.splitlines(keepends=True)
    patched = "".join([*lines[:5], "    log()\n", *lines[5:]])
    new = "def f():\n" + "    step(1)\n    wait()\n" * 9
    hunk = only(judged(old, patched, new.replace("def f():\n", "def f():\n    begin()\n")))
    assert hunk.state in ("conflict", "moved")
    hunk = only(judged(old, patched, "def f():\n    step(1)\n    wait()\n" * 2))
    assert hunk.state == "conflict"


def test_imports_go_beside_an_import_of_the_context() -> None:
    old = "import os\nimport re\nfrom verl import a\n\nX = 1\n"
    patched = old.replace("import re\n", "import re\nimport sys\n")
    ported = judged(
        old, patched, old.replace("from verl import a", "from verl.utils import (\n    a,\n    b,\n)")
    )
    assert only(ported).state == "merged"
    assert (ported.files[0].after or b"").startswith(b"import os\nimport re\nimport sys\nfrom verl.utils")


def test_a_file_that_is_gone_and_where_its_function_is() -> None:
    other = "class Base:\n    pass\n\n\nclass Rollout(Base):\n    def generate(self, prompts):\n        batch = 1\n"
    other += "        result = self.engine.run(batch)\n        return result\n"
    history = MadeHistory(deleted_by={"m.py": "c0ffee"})
    ported = judged(
        OLD, HINTED, None, others={"engine/rollout.py": other, "x.py": "y = 1\n"}, history=history
    )
    hunk = only(ported)
    assert (hunk.state, hunk.commit, hunk.inside) == ("target gone", "c0ffee", "Rollout.generate")
    assert ported.files[0].after is None
    assert [(place.path, place.inside) for place in hunk.places] == [
        ("engine/rollout.py", "Rollout.generate")
    ]
    assert hunk.places[0].context.splitlines()[0].strip().startswith(("def generate", "result = self.engine"))


def test_a_renamed_file_comes_first() -> None:
    history = MadeHistory({"m.py": "c0ffee"}, {"m.py": "new/m.py"})
    hunk = only(judged(OLD, HINTED, None, others={"new/m.py": OLD, "a/m.py": OLD}, history=history))
    assert (hunk.state, hunk.why) == ("target gone", "the file is new/m.py now")
    assert hunk.places[0].path == "new/m.py"


def test_a_function_that_is_gone() -> None:
    new = OLD.replace("generate", "sample").replace("self.prepare(prompts)", "self.ready(prompts)")
    new = new.replace("self.engine.run", "self.model.run")
    history = MadeHistory()
    hunk = only(judged(OLD, HINTED, new, history=history))
    assert (hunk.state, hunk.commit) == ("target gone", "lost")
    assert history.asked == [[b"    def generate(self, prompts):\n"]]
    assert hunk.why == "Rollout.generate is no longer in the file"


@pytest.mark.parametrize(
    ("old", "patched", "new", "state"),
    [
        (None, "x = 1\n", None, "exact"),
        (None, "x = 1\n", "x = 1\n", "already upstream"),
        (None, "x = 1\n", "x = 2\n", "conflict"),
        ("x = 1\n", None, "x = 1\n", "exact"),
        ("x = 1\n", None, None, "already upstream"),
        ("x = 1\n", None, "x = 2\n", "conflict"),
    ],
)
def test_a_file_made_or_deleted(old: str | None, patched: str | None, new: str | None, state: str) -> None:
    ported = judged(old, patched, new)
    assert only(ported).state == state
    if state != "conflict":
        assert ported.files[0].after == (None if patched is None else patched.encode())


def test_a_result_that_would_not_compile_is_a_conflict() -> None:
    old = "a = 1\nb = 2\nlong_name = 3\nc = 4\nother_name = 5\n"
    new = "a = 1\nb = [\nlong_name, 3]\nc = 4\nother_name = 5\n".replace("long_name, 3]", "long_name = 3")
    patched = old.replace("c = 4\n", "c = 4\nadded_name = 6\n")
    assert only(judged(old, patched, old + "z = 1\n")).state == "exact"
    assert only(judged(old, patched, new)).state in ("exact", "merged")  # it compiles no more before, either


def test_a_section_of_a_configuration() -> None:
    old = "actor:\n  optim:\n    lr: 1\n    clip: 2\ncritic:\n  optim:\n    lr: 1\n    clip: 2\n"
    patched = old.replace("    clip: 2\ncritic", "    clip: 3\ncritic")
    new = "critic:\n  optim:\n    lr: 1\n    clip: 2\nreward:\n  optim:\n    lr: 1\n    clip: 2\n"
    assert only(judged(old, patched, old, "c.yaml")).state == "exact"
    hunk = only(judged(old, patched, new, "c.yaml"))
    assert (hunk.state, hunk.why) == ("target gone", "actor.optim is no longer in the file")
    moved = only(judged(old, patched, "x: 1\n" + old, "c.yaml"))
    assert (moved.state, moved.inside) == ("moved", "actor.optim")
