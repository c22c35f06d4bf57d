"""Sections of configuration files: the reader of their keys, and hunks that fit in a twin."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_rl.stack.hunks.hunk_headings import misplaced, moved_to_twin
from npu_rl.stack.hunks.hunk_match import locate
from npu_rl.stack.hunks.key_headings import with_key_paths
from npu_rl.stack.hunks.key_paths import Names, read_keys
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_model import Hunk
from tests.patches.helpers import work_tree_diff

EXAMPLES = int(os.environ.get("NPU_RL_HEADINGS", "25"))
NAMES = st.sampled_from(["actor", "critic", "optim", "lr", "a b", "x-y", "{{ x }}", "#", "ä"])
LEAF = st.one_of(
    st.integers(), st.booleans(), st.sampled_from(["text", "a: b", "[x]\n\n  y: 1\n", "#", '"', ""])
)
TREE = st.dictionaries(
    NAMES,
    st.recursive(
        LEAF,
        lambda inner: st.dictionaries(NAMES, inner, max_size=3) | st.lists(inner, max_size=3),
        max_leaves=12,
    ),
    min_size=1,
    max_size=4,
)


def marked(value: Any, path: Names, paths: dict[str, Names]) -> Any:
    """The value with a text of its own for each number, and the path of each."""
    if isinstance(value, dict):
        return {name: marked(inner, (*path, name), paths) for name, inner in value.items()}
    if isinstance(value, list):
        return [marked(inner, (*path, f"[{n}]"), paths) for n, inner in enumerate(value)]
    if isinstance(value, int):
        mark = f"m{len(paths)}m"
        paths[mark] = path
        return mark
    return value


@settings(max_examples=EXAMPLES, deadline=None)
@given(tree=TREE, flow=st.booleans())
def test_the_keys_of_yaml_and_json(tree: dict[str, Any], flow: bool) -> None:
    paths: dict[str, Names] = {}
    value = marked(tree, (), paths)
    texts = {
        "a.yaml": yaml.safe_dump(value, sort_keys=False, default_flow_style=None if flow else False),
        "a.json": json.dumps(value, indent="\t" if flow else 2, ensure_ascii=flow),
    }
    for name, text in texts.items():
        keys = read_keys(text.encode(), name)
        assert keys is not None
        assert [key.line for key in keys] == sorted(key.line for key in keys)
        for number, line in enumerate(text.split("\n"), 1):
            there = {key.path for key in keys if key.line == number}
            assert {path for mark, path in paths.items() if mark in line} <= there, (name, text)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    sections=st.lists(st.sampled_from(["actor", "critic.optim", '"a ] b"']), max_size=4),
    values=st.lists(
        st.sampled_from(
            ["1", '"[x]"', "'''\n[actor]\nlr = 2\n'''", "[ 1, # ]\n  {x = 2},\n]", '"""a\\""" = """']
        ),
        min_size=1,
    ),
    arrays=st.booleans(),
)
def test_the_keys_of_toml(sections: list[str], values: list[str], arrays: bool) -> None:
    text, wanted = "", []
    counts: dict[str, int] = {}
    for section in ["", *sections]:
        counts[section] = counts.get(section, -1) + 1
        name = f"{section}[{counts[section]}]" if arrays else section
        if section:
            text += f"# [none]\n[[{section}]]\n" if arrays else f"\n[{section}] # x\n"
        for number, value in enumerate(values):
            path = (f"k{number}",) if not section else (name, f"k{number}")
            wanted.append((text.count("\n") + 1, path))
            text += f"k{number} = {value}\n"
    keys = read_keys(text.encode(), "a.toml")
    assert keys is not None
    assert [(key.line, key.path) for key in keys if not key.opens] == wanted


def test_the_keys_of_ini() -> None:
    keys = read_keys(b"x = 1\r\n[a b]\r\ny: 2\r\n  z = 3\r\n; c\r\n[b]\r\nw\r\n", "setup.cfg")
    assert keys is not None
    assert [(k.line, k.path) for k in keys] == [
        (1, ("x",)),
        (2, ("a b",)),
        (3, ("a b", "y")),
        (6, ("b",)),
        (7, ("b", "w")),
    ]


SUFFIXES = st.sampled_from(["a.yaml", "a.json", "a.toml", "a.ini"])


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(
    content=st.binary(max_size=80)
    | st.text("ab:[]{}\"'=-#|>&*!%,?.\\ \t\n", max_size=60).map(lambda text: text.encode()),
    heading=st.text("ab:[]{}\"'=-# \t", max_size=8),
    name=SUFFIXES,
)
def test_no_text_breaks_the_reader(content: bytes, heading: str, name: str) -> None:
    keys = read_keys(content, name)
    assert keys is None or all(1 <= key.line <= content.count(b"\n") + 1 for key in keys)
    for line in range(1, content.count(b"\n") + 2):
        text = content.split(b"\n")[line - 1] + b"\n"
        for tag in (b"-", b"+"):
            counts = b"@@ -%d,1 +%d,0 @@ " if tag == b"-" else b"@@ -%d,0 +%d,1 @@ "
            diff = b"--- a/x\n+++ b/x\n" + counts % (line, line) + heading.encode() + b"\n" + tag + text
            try:
                (one,) = parse_patch(diff, name="x").hunks
            except Exception:  # noqa: BLE001  # a line that no patch can have
                continue
            misplaced(content, one, line, name)
            moved_to_twin(content, one, 1, name)


@pytest.mark.parametrize(
    "text", [b"[" * 60_000, b"{" * 60_000, b"- " * 60_000, b"[a" * 60_000, b"a" + b" " * 300_000]
)
def test_a_bomb_is_not_read(text: bytes) -> None:
    for name in ("a.yaml", "a.json", "a.toml"):
        assert not read_keys(text, name)


def configuration(order: list[str], kind: str, lead: int) -> str:
    """The same keys in each section, and a nested section in each."""
    keys = ["clip: 1", "epochs: 2", "warmup: 3", "lr: 4", "decay: 5", "beta: 6", "eps: 7"]
    if kind == "yaml":
        body = "".join(f"    {key}\n" for key in keys)
        return "# x\n" * lead + "".join(f"{name}:\n  name: {name}\n  optim:\n{body}" for name in order)
    if kind == "json":
        data = {name: {"name": name, "optim": {k.split(":")[0]: 1 for k in keys}} for name in order}
        return json.dumps({**{f"x{n}": 1 for n in range(lead)}, **data}, indent=2) + "\n"
    body = "".join(key.replace(":", " =") + "\n" for key in keys)
    return "# x\n" * lead + "".join(f'[{name}]\nname = "{name}"\n{body}\n' for name in order)


@settings(max_examples=max(EXAMPLES // 8, 3), deadline=None)
@given(
    order=st.permutations(["actor", "ref", "critic"]),
    kind=st.sampled_from(["yaml", "toml", "ini", "json"]),
    context=st.sampled_from([1, 3, 6]),
    seed=st.integers(0, 99),
)
def test_what_git_writes_is_accepted_in_its_place_only(
    tmp_path_factory: pytest.TempPathFactory, order: list[str], kind: str, context: int, seed: int
) -> None:
    """With git's own headings; in YAML, whose sections git names, none applies to another section."""
    folder = tmp_path_factory.mktemp("headings")
    names = ["actor", "ref", "critic"]
    old = configuration(names, kind, 2)
    lines = old.split("\n")
    at = random.Random(seed).choice(
        [n for n, text in enumerate(lines) if any(k in text for k in ("lr", "eps", "clip"))]
    )
    new = lines.copy()
    new[at] = lines[at].replace("lr", "LR").replace("eps", "EPS").replace("clip", "CLIP")
    place = folder / f"a.{kind}"
    (one,) = parse_patch(
        work_tree_diff(folder, place.name, old, "\n".join(new), f"-U{context}"), name="x"
    ).hunks
    assert misplaced(old.encode(), one, one.old_index + 1, place.name) is None
    other = configuration(order, kind, 2)
    found = locate(other.encode(), one)
    if found.line is None or found.kind != "exact" or kind != "yaml":
        return
    there = found.line - 1 + next(one.changes()).at

    def section(text: list[str], line: int) -> str:
        return next(text[n].strip(":") for n in range(line, -1, -1) if text[n].strip(":") in names)

    if misplaced(other.encode(), one, found.line, place.name) is None:
        assert section(other.split("\n"), there) == section(lines, at)


@pytest.mark.parametrize("kind", ["yaml", "json"])
def test_twins_below_one_key_are_told_apart_by_key_paths(tmp_path: Path, kind: str) -> None:
    """git's heading is the one key of the first column in both, or in JSON none."""

    def text(order: list[str]) -> str:
        data = {"all": {name: {"optim": dict.fromkeys("abcdefgh", 1)} for name in order}}
        return yaml.safe_dump(data, sort_keys=False) if kind == "yaml" else json.dumps(data, indent=2) + "\n"

    old = text(["actor", "ref"])
    place = tmp_path / f"a.{kind}"
    at = [n for n, line in enumerate(old.split("\n")) if line.strip(' ",').startswith("e")][1]
    lines = old.split("\n")
    lines[at] = lines[at].replace("1", "2")
    by_git = work_tree_diff(tmp_path, place.name, old, "\n".join(lines))
    named = with_key_paths(by_git, old.encode(), place.name)
    assert named.count(b"@@ all.ref.optim\n") == 1
    assert by_git.splitlines()[5:] == named.splitlines()[5:]
    (one,) = parse_patch(named, name="x").hunks
    assert misplaced(old.encode(), one, one.old_index + 1, place.name) is None
    swapped = text(["ref", "actor"]).encode()
    found = locate(swapped, one)
    assert found.kind == "exact" and found.line
    assert "in all.actor.optim" in str(misplaced(swapped, one, found.line, place.name))
    assert misplaced(swapped, parse_patch(by_git, name="x").hunks[0], found.line, place.name) is None


def hunk(at: int, heading: str, *lines: str) -> Hunk:
    old = sum(line[0] != "+" for line in lines)
    new = sum(line[0] != "-" for line in lines)
    text = f"--- a/x\n+++ b/x\n@@ -{at},{old} +{at},{new} @@ {heading}\n" + "".join(
        f"{line}\n" for line in lines
    )
    (one,) = parse_patch(text.encode(), name="x").hunks
    return one


YAML = """actor:
  optim:
    a: 1
    lr: 1
    b: 1
  extra: 1
  name: actor
seed: 1
critic:
  optim:
    a: 1
    lr: 1
    b: 1
"""
CHANGE = ("     a: 1", "-    lr: 1", "+    lr: 2", "     b: 1")


@pytest.mark.parametrize(
    ("at", "heading", "lines", "refused"),
    [
        (3, "actor:", CHANGE, ""),
        (11, "critic:", CHANGE, ""),
        (11, "actor:", CHANGE, "in critic.optim (line 10); its heading is `actor:` (line 1)"),
        (11, "actor: # as it was", CHANGE, "in critic.optim (line 10)"),
        (11, "actor.optim", CHANGE, "its heading is `actor.optim` (line 2)"),
        (11, "critic.optim", CHANGE, ""),
        (11, "  optim:", CHANGE, ""),  # both sections have one
        (11, "ref:", CHANGE, ""),  # no key of the file
        (11, "", CHANGE, ""),
        (11, "actor:", ("     a: 1", "+    c: 1", "     lr: 1"), "in critic.optim"),  # an added key
        (9, "actor:", (" critic:", "   optim:", *CHANGE), ""),  # the hunk names its section
        (10, "actor:", ("   optim:", *CHANGE), "in critic.optim"),  # not its outermost one
        (8, "actor:", ("-seed: 1", "+seed: 2"), ""),  # the outermost keys are all different
    ],
)
def test_sections_of_yaml(at: int, heading: str, lines: tuple[str, ...], refused: str) -> None:
    said = misplaced(YAML.encode(), hunk(at, heading, *lines), at, "a.yaml")
    assert said is None if not refused else said and refused in said


def test_sections_of_json_and_toml() -> None:
    text = json.dumps({n: {"optim": {"a": 1, "lr": 1, "b": 1}} for n in ("actor", "critic")}, indent=2) + "\n"
    at = [n for n, line in enumerate(text.split("\n"), 1) if '"a"' in line][1]
    change = ('       "a": 1,', '-      "lr": 1,', '+      "lr": 2,', '       "b": 1')
    for heading, fits in (
        ('  "actor": {', False),
        ('"critic": {', True),
        ("actor.optim", False),
        ("critic", True),
    ):
        assert (misplaced(text.encode(), hunk(at, heading, *change), at, "a.json") is None) == fits, heading
    text = "[actor]\nname = 'x'\na = 1\nlr = 1\nb = 1\n\n[critic]\nname = 'y'\na = 1\nlr = 1\nb = 1\n"
    change = (" a = 1", "-lr = 1", "+lr = 2", " b = 1")
    for heading, fits in (
        ("name = 'x'", False),  # as git writes it
        ("name = 'y'", True),
        ("name = 'z'", True),  # changed since, and in both
        ("[actor]", False),
        ("critic", True),
    ):
        for name in ("a.toml", "a.ini"):
            assert (misplaced(text.encode(), hunk(9, heading, *change), 9, name) is None) == fits, heading
    below = (" [critic]", " name = 'y'", *change)
    assert misplaced(text.encode(), hunk(7, "b = 1", *below), 7, "a.toml") is None


@pytest.mark.parametrize("added", ["", "warmup = 9\n"])
def test_gits_heading_is_of_the_section_before(added: str) -> None:
    """`[critic]` is no heading of git's, so a hunk near its beginning has the last key of `[actor]`."""
    text = f"[actor]\nlr = 1\nsteps = 5\n{added}[critic]\nbeta = 1\ngamma = 2\nomega = 4\nzeta = 5\n"
    change = (" beta = 1", " gamma = 2", "-omega = 4", "+omega = 9", " zeta = 5")
    for name in ("a.toml", "a.ini"):
        one, moved = hunk(5, "steps = 5", *change), len(added.splitlines())
        assert misplaced(text.encode(), one, 5 + moved, name) is None
        assert moved_to_twin(text.encode(), one, moved, name) is None


def test_documents_of_one_file_are_sections() -> None:
    text = "kind: A\nspec: 1\n---\nkind: B\nspec: 1\n"
    change = ("-spec: 1", "+spec: 2")
    assert misplaced(text.encode(), hunk(5, "kind: A", *change), 5, "a.yaml") is not None
    assert misplaced(text.encode(), hunk(5, "kind: B", *change), 5, "a.yaml") is None


def test_a_file_that_is_not_valid_is_judged_by_its_lines() -> None:
    broken = YAML.encode() + b"{% if x %}\n"
    assert read_keys(broken, "a.yaml") is None
    said = misplaced(broken, hunk(11, "actor:", *CHANGE), 11, "a.yaml")
    assert said is not None and "below `critic:` (line 9)" in said and "only lines were compared" in said
    for heading in ("critic:", "ref:", "seed: 1", ""):
        assert misplaced(broken, hunk(11, heading, *CHANGE), 11, "a.yaml") is None
    assert moved_to_twin(broken, hunk(3, "", *CHANGE), 8, "a.yaml") is None


def test_a_hunk_without_a_heading_that_moved() -> None:
    """git writes none for JSON: the nearest section that has its keys is meant."""
    changed = YAML.replace("    lr: 1\n", "    lr: 3\n", 1)
    said = moved_to_twin(changed.encode(), hunk(3, "", *CHANGE), 8, "a.yaml")
    assert (
        said is not None and "in critic.optim (line 10); its line 3 is nearer to actor.optim (line 2)" in said
    )
    assert moved_to_twin(("# x\n" + YAML).encode(), hunk(3, "", *CHANGE), 1, "a.yaml") is None
    top = ("-seed: 1", "+seed: 2")
    assert moved_to_twin(YAML.encode(), hunk(2, "", *top), 6, "a.yaml") is None


@pytest.mark.parametrize(
    ("name", "before", "section"),
    [
        ("x.toml", "", "[{}]"),
        ("x.ini", "", "[{}]"),
        ("x.json", '{{\n  "icon": "\\ud83d\\ude00",\n', '  "{}": {{'),
        ("x.yaml", 'all:\n  "my group":\n', "    {}:"),
        ("x.yaml", "all:\n  actor@größe:\n", "    {}:"),
        ("x.yaml", f"all:\n  {'a' * 100}:\n", "    {}:"),
    ],
)
def test_a_patch_of_diff_fits_in_no_twin(name: str, before: str, section: str, tmp_path: Path) -> None:
    """git's heading is `k2 = 1`, which both sections have, or none; and the path has a blank or is long."""
    ends = "  },\n" if name == "x.json" else ""
    line = {"x.json": '    "k{}": 1,\n', "x.yaml": "      k{}: 1\n"}.get(name, "k{} = 1\n")

    def text(*order: str) -> str:
        parts = [section.format(one) + "\n" + "".join(map(line.format, range(10))) + ends for one in order]
        last = '  "z": 1\n}\n' if name == "x.json" else ""
        return before.replace("{{", "{") + "".join(parts) + last

    old = text("actor", "ref")
    second = old.rindex("k6")
    by_git = work_tree_diff(tmp_path, name, old, old[:second] + old[second:].replace("1", "2", 1))
    (one,) = parse_patch(with_key_paths(by_git, old.encode(), name), name="x").hunks
    assert misplaced(old.encode(), one, one.old_index + 1, name) is None
    swapped = text("ref", "actor").encode()
    found = locate(swapped, one)
    assert found.kind == "exact" and found.line == one.old_index + 1
    assert "actor (line" in str(misplaced(swapped, one, found.line, name))
