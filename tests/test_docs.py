"""The documentation: commands parse, examples load or run, links lead somewhere, the translation is in step."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest
import typer
import yaml

from npu_rl.cli.app import app
from npu_rl.common.documentation import SITE
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.stack.patches.patch_table import patch_rows
from tests.doc_pages import (
    NEEDS_INDEX,
    NEEDS_UPSTREAMS,
    PAGES,
    TUTORIAL,
    Block,
    agree,
    blocks,
    prepare,
    prose,
    run_scene,
    run_shell,
    transcript,
    typed_commands,
)
from tests.support import ROOT, ok

GENERATED = {"npu_rl/_data"}
"""What a page may name where it is not, or not yet: a wheel has _data."""
BLOCKS = [block for page in PAGES for block in blocks(page)]
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"


def named(blocks: Iterator[Block]) -> list[object]:
    return [pytest.param(block, id=block.id) for block in blocks]


# -- commands


def parse(line: str) -> None:
    """Have the real parser take a command line: it looks up the command, converts every value and calls nothing."""
    words = shlex.split(re.sub(r"--rehearse(?!=)", "--rehearse=all", line))[1:]
    words = ["1" if word == "N" else word for word in words]
    command, name, context = typer.main.get_command(app), "npu-rl", None
    while hasattr(command, "get_command") and words and not words[0].startswith("-"):
        # With its parent's context a command takes -h; it keeps what it was first parsed with.
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
        inner = command.get_command(context, words[0])
        assert inner is not None, f"{words[0]} is no command of {name}"
        (name, *words), command = words, inner
    if not hasattr(command, "get_command"):
        command.make_context(name, words, parent=context)


def test_every_command_line_is_understood() -> None:
    """Those that are typed and not run are parsed by nothing else."""
    for page in PAGES:
        for line in typed_commands(page):
            if not re.search(r"[\[\]…]|\.\.\.", line):  # a synopsis
                parse(line)


def test_every_command_is_run_or_says_why_not() -> None:
    shells = [block for block in BLOCKS if block.language in ("sh", "console")]
    assert [block.id for block in shells if block.mark not in ("runs", "not run")] == []


# -- what is run


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(
            block,
            id=block.id,
            marks=[pytest.mark.upstreams] if block.said in NEEDS_UPSTREAMS else [],
        )
        for block in BLOCKS
        if block.language == "console"
        and block.mark == "runs"
        and block.said != TUTORIAL
        and block.page != CHINESE
    ],
)
@pytest.mark.second
def test_a_transcript_is_what_is_printed(
    block: Block, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    env = scene(block, tmp_path, request)
    prints_what_it_shows(block, tmp_path, env)


def prints_what_it_shows(block: Block, folder: Path, env: dict[str, str]) -> None:
    for (command, shown), (_, printed) in zip(transcript(block), run_scene(block, folder, env), strict=True):
        text = "\n".join(printed)
        assert agree(shown, printed), (
            f"{block.id}: `{command}` prints now (python -m tests.doc_pages):\n{text}"
        )


@pytest.mark.parametrize(
    "block",
    named(b for b in BLOCKS if b.language == "sh" and b.mark == "runs" and b.said != TUTORIAL),
)
@pytest.mark.second
def test_a_shell_block_succeeds(block: Block, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    ok(run_shell(block.text, tmp_path, scene(block, tmp_path, request)))


@pytest.mark.second
def test_the_tutorial_runs_from_top_to_bottom(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    steps = [block for block in blocks(ROOT / "docs" / "tutorial.md") if block.mark in ("runs", "file")]
    env = scene(next(block for block in steps if block.mark == "runs"), tmp_path, request)
    for role in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{role}_NAME": "me", f"GIT_{role}_EMAIL": "me@example.com"}
    for block in steps:
        if block.mark == "file":
            (tmp_path / block.said).write_text(block.text, encoding="utf-8")
        elif block.language == "sh":
            ok(run_shell(block.text, tmp_path, env))
        else:
            prints_what_it_shows(block, tmp_path, env)


def scene(block: Block, folder: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of a block's scene, its files in place. Skips where it needs what is not there."""
    if block.said == "data":
        pytest.importorskip("pyarrow")
    upstreams = request.getfixturevalue("upstreams") if block.said in NEEDS_UPSTREAMS else None
    workspace = request.getfixturevalue("quickstart_workspace") if block.said in NEEDS_INDEX else None
    store = workspace.parent / "store" if workspace else None  # the index has delivered there before
    return prepare(block.said, folder, block.page, upstreams=upstreams, store=store)


# -- examples of data


@pytest.mark.parametrize("block", named(b for b in BLOCKS if b.language == "yaml"))
def test_every_manifest_and_recipe_loads(block: Block, tmp_path: Path) -> None:
    data = yaml.safe_load(block.text)
    if block.mark == "excerpt":
        return
    file = tmp_path / f"{data['name']}.yaml"
    file.write_text(block.text, encoding="utf-8")
    if "components" in data:
        assert load_manifest(str(file)).manifest.name == data["name"]
    else:
        assert load_recipe(str(file)).recipe.name == data["name"]


def test_the_manifest_of_the_readme_has_ten_lines_or_so() -> None:
    (manifest,) = (block for block in blocks(ENGLISH) if block.mark == "file")
    assert manifest.text.count("\n") <= 12


# -- links and names


def targets(page: Path) -> list[str]:
    text = prose(page)
    return re.findall(r"\]\(([^)\s]+)\)", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    for target in targets(page):
        if re.match(r"https?://|#", target):
            continue
        file = (page.parent / target.partition("#")[0]).resolve()
        assert file.relative_to(ROOT)
        assert file.exists() or str(file.relative_to(ROOT)) in GENERATED, f"{page.name}: {target}"
        if "#" in target:
            assert target.partition("#")[2] in anchors(file), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them in links."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_a_message_names_a_page_and_section_that_are_there() -> None:
    called = re.compile(r"""page_url\(["']([\w-]+)["'](?:, ["']([\w-]+)["'])?\)""")
    files = (ROOT / "npu_rl").rglob("*.py")
    named = [found for file in files for found in called.findall(file.read_text(encoding="utf-8"))]
    for page, section in named:
        assert {section} <= {"", *anchors(ROOT / "docs" / f"{page}.md")}, f"{page}#{section}"
    assert named


def test_the_address_of_the_site_is_one() -> None:
    assert f'Documentation = "{SITE}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"site_url: {SITE}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_is_there(page: Path) -> None:
    known = "npu_rl|tests|docs|manifests|recipes|patchsets|\\.ci"
    text = page.read_text(encoding="utf-8")
    quoted = re.findall(rf"`((?:{known})/(?!zh/)[\w./-]+)(?:::\w+)?`", text)
    for name in [*quoted, *re.findall(r"\btests/[\w/]+\.py\b", text)]:
        places = (ROOT / name, ROOT / "npu_rl" / name)
        assert any(map(Path.exists, places)) or name in GENERATED, f"{page.name}: {name}"


def test_the_pages_stay_few() -> None:
    generated = {"commands.md", "environment.md", "faults.md", "troubleshooting.md"}
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name not in generated]
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    assert len(pages) <= 22
    assert sum(max(1, math.ceil(len(line) / 160)) for line in lines) <= 3600


def test_the_patches_of_the_flagship_are_counted() -> None:
    components = load_manifest("deepseek-r1-zero").manifest.components.values()
    folders = {ROOT / "patchsets" / patch.path for component in components for patch in component.patches}
    rows = [
        row for folder in folders for row in patch_rows(ROOT / "patchsets") if row.version == named_by(folder)
    ]
    slugs = {slug for row in rows for slug in row.adaptation}
    page = (ROOT / "docs" / "deepseek-r1-zero.md").read_text(encoding="utf-8")
    assert f" {len(slugs)} adaptations" in page and f" {len(rows)} small patches" in page


def named_by(folder: Path) -> str:
    return f"{folder.parent.name} {folder.name}"


# -- the drawing of the floors


def test_the_drawing_has_the_floors_of_import_linter_in_their_order() -> None:
    layers = re.search(
        r"^layers = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S
    )
    assert layers
    rooms = re.findall(r"npu_rl\.([\w.]+)", layers[1])
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (drawing,) = (
        block.text for block in blocks(ROOT / "docs" / "architecture.md") if block.language == "text"
    )
    floors, _, apart = drawing.partition("\n apart")
    drawn, group = [], ""
    for line in floors.splitlines():
        new = re.match(r" (\w+)", line)
        group = new[1] if new else group
        names = re.findall(r"\w+", line[new.end() :] if new else line)
        drawn += [f"{group}.{name}" for name in names] or [group]
    assert drawn == rooms
    assert "runtime" in apart
    groups = {path for path in (ROOT / "npu_rl").iterdir() if (path / "__init__.py").exists()}
    assert len(groups) <= 10, "the drawing has ten groups"
    for group_path in groups:
        inner = [path.name for path in group_path.iterdir() if (path / "__init__.py").exists()]
        whole = group_path.name in ("cli", "rehearsal", "runtime")
        for room in [group_path.name] if whole else [f"{group_path.name}/{name}" for name in inner]:
            assert f"| `{room}` |" in page, f"{room} has no row"


# -- two languages


def headings(page: Path) -> list[int]:
    text = prose(page)
    return [len(marks) for marks in re.findall(r"^(#+) ", text, re.M)]


def tables(page: Path) -> list[int]:
    """The columns of every row of every table."""
    return [line.count("|") for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]


def test_both_readmes_have_the_same_headings_tables_and_links() -> None:
    assert headings(ENGLISH) == headings(CHINESE)
    assert tables(ENGLISH) == tables(CHINESE)
    other = {"README.zh-CN.md": "README.md"}
    assert targets(ENGLISH)[1:] == targets(CHINESE)[1:]
    assert other[targets(ENGLISH)[0]] == targets(CHINESE)[0]


def test_both_readmes_have_the_same_blocks() -> None:
    """Comments in shell and YAML may be translated; what is typed and printed may not."""
    for one, other in zip_longest(blocks(ENGLISH), blocks(CHINESE)):
        assert one and other, "one page has more blocks"
        assert (one.language, one.mark) == (other.language, other.mark)
        assert without_comments(one) == without_comments(other)


def without_comments(block: Block) -> str:
    return block.text if block.language == "console" else re.sub(r"\s+# .*", "", block.text)
