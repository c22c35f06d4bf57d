"""Real hunks and the flagship's patches, by the merge that a rebase uses and the check of places."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.compose.write_patch import PatchOptions, diff_text
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.git.objects import EMPTY_TREE, FILE, Entry
from npu_rl.stack.hunks.hunk_match import split_lines
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.port.placement_check import enclosing, place_questions
from npu_rl.stack.port.ported_patches import merged_tree
from tests.port.corpus import ANSWERS, NEEDS_PERSON, CorpusHunk, corpus_hunks, read_corpus
from tests.support import clean_env, rewrites, run_cli

MOST_WRONG, MOST_ASKED = 2, 30


def test_the_corpus_has_every_answer() -> None:
    counts = Counter(hunk["answer"] for entry in read_corpus() for hunk in entry["hunks"])
    assert set(counts) == set(ANSWERS) and min(counts.values()) >= 3 and counts.total() >= 160


@pytest.mark.upstreams
def test_few_hunks_of_the_corpus_are_wrong_or_asked(upstreams: Path, tmp_path: Path) -> None:
    init_bare(tmp_path / "trees")
    with Trees(Git(tmp_path / "trees")) as trees:
        verdicts = [(_verdict(trees, one), one.where) for one in corpus_hunks(upstreams)]
    counts = Counter(verdict for verdict, _ in verdicts)
    told = [pair for pair in verdicts if pair[0] != "right"]
    print(counts, told)
    assert counts.total() >= 162 and counts["wrong"] <= MOST_WRONG and counts["asked"] <= MOST_ASKED, told


def _verdict(trees: Trees, one: CorpusHunk) -> str:
    """Return "right", "wrong", or "asked" for a question to which a person needs no thought."""
    lines, hunk = split_lines(one.old), one.hunk
    lines[hunk.old_index : hunk.old_index + hunk.old_count] = hunk.new_lines

    def tree(content: bytes) -> str:
        return trees.put(EMPTY_TREE, one.path, Entry(FILE, trees.write_object("blob", content)))

    old, patched = tree(one.old) if one.old else EMPTY_TREE, tree(b"".join(lines))
    new = EMPTY_TREE if one.new is None else tree(one.new)
    after = merged_tree(trees, old, new, patched)
    if after == new:
        return "right" if one.answer == "already upstream" else "wrong"
    if after is not None:
        was, now = (
            parse_patch(b"Subject: x\n---\n" + diff_text(trees, *pair, PatchOptions()), name="x")
            for pair in ((old, patched), (new, after))
        )
        if not [*place_questions(was, now, lambda _: one.old, lambda _: one.new)]:
            place = now.hunks[0].old_index + next(now.hunks[0].changes()).at
            origin = hunk.old_index + next(hunk.changes()).at
            same = enclosing(one.new or b"", place, one.path) == enclosing(one.old, origin, one.path)
            return "right" if same and one.answer not in (*NEEDS_PERSON, "already upstream") else "wrong"
    return "right" if one.answer in NEEDS_PERSON else "asked"


@pytest.mark.upstreams
def test_six_patches_of_the_flagship_are_carried(upstreams: Path, tmp_path: Path) -> None:
    """verl 55e3c5b to v0.6.1: the other five need a person, who leaves them out here."""
    env = clean_env(tmp_path) | {"NPU_RL_REWRITE": rewrites(upstreams, "deepseek-r1-zero")}
    port = ["patches", "port", "verl"]
    stopped = run_cli([*port, "--to", "v0.6.1", "--manifest", "deepseek-r1-zero"], env, tmp_path)
    folder, stops = tmp_path / "npu-rl-port-verl", 0
    assert stopped.returncode == 1, stopped.stderr
    user = {"PATH": os.environ["PATH"], "HOME": env["HOME"]}
    while (folder / ".git/rebase-merge").exists():
        subprocess.run(["git", "rebase", "--skip"], cwd=folder, env=user, capture_output=True, check=False)
        stops += 1
    done = run_cli([*port, "--finish"], env, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    carried = [line for line in done.stdout.splitlines() if line.endswith((": carried", ": moved"))]
    assert (len(carried), stops) == (6, 5)
