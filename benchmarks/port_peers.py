"""Twenty hunks of real history, carried to a later version by npu-rl, git, StGit and GNU patch.

    NPU_RL_UPSTREAMS=DIR python -m benchmarks.port_peers [--stg COMMAND]

`DIR` has bare repositories OWNER+NAME/repo. The hunks were chosen from tests/port/corpus before anything was measured:
two or more of each answer, and those where tools go wrong: twin functions, lines that stand elsewhere by coincidence,
changes that are upstream already. Each hunk is a patch of its own, on the version that it was made for.

`git am -3` has the blobs that the patch names, and `--keep-cr`, for a file with such line ends; `stg rebase` has both
versions as commits, so that renames are followed; `patch -p1 -N` has its default fuzz, and refuses what it finds
applied. What each left is compared with the new version: where is the first changed line, and should there be any?

right: the change is in the file and function where the answer has it; or nothing was changed, and the change is
upstream already; or it was refused, and a person has to look. rejected: it was refused, and a person would not have to
look. twice: the change was applied once more. wrong: it was applied elsewhere, or where it no longer belongs.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.stack.hunks.hunk_match import split_lines
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_model import Hunk
from npu_rl.stack.port.port_judgement import UNSOLVED, MarkerNames
from npu_rl.stack.port.port_patch import port_patch
from tests.port.corpus import Answer, Case, PatchFile, load_corpus
from tests.port.corpus_mirrors import MirrorHistory, MirrorVersion, UpstreamMirrors

CHOSEN = (
    ("0003-verl-feature-recompute_old_log_prob.patch", "v0.6.1", 1),
    ("0005-vllm_ascend-bugfix-align_FIA_input_for_TND_layout.patch", "v0.15.0rc1", 1),
    ("mcore_v0.6.patch", "core_v0.9.0", 4),
    ("mcore_v0.6.patch", "core_v0.9.0", 8),
    ("fix_optimizer_offloading.patch", "core_v0.12.0", 2),
    ("0002-enable-tool-agent-loop.patch", "v0.8.0", 3),
    ("tfas_patch_request.patch", "v0.9.2", 1),
    ("0003-vllm_ascend-bugfix-set_hccl_op_expansion_mode.patch", "v0.15.0rc1", 1),
    ("0001-vllm_ascend-feature-bs_threshold_for_spec_decode.patch", "v0.15.0rc1", 7),
    ("b8dc5377c6484f5873102e02f6a63829528ab8c9", "v0.7.1", None),
    ("0007-vllm_ascend-bugfix-disabled-fia.patch", "v0.11.0", 3),
    ("0010-verl-feature-enable_hdp.patch", "v0.6.1", 5),
    ("361739e02c265a425c1e610084a09a4f31da25aa", "main", None),
    ("0004-vllm_ascend-bugfix-npugraph_ex_static_kernel_typo.patch", "v0.15.0rc1", 1),
    ("0f4f09547af3cac86eaf5ff07a605600ea533368", "core_v0.15.0", None),
    ("1e77077788bd9f889dd2b6ab315bd9839444cbaf", "v0.18.0", 1),
    ("c929bd1e8d4f955a0b5434bf72ba7061068ccd14", "v0.18.0", None),
    ("6919aae8167f8378243c813005517b6e9ee80134", "v26.0.0_core_r0.12.1", 1),
    ("0010-vllm_ascend-feature-enabled_sam_spec_decode.patch", "v0.11.0", 1),
    ("agent_loop.patch", "v0.8.0", 1),
)
"""The patch's file or commit, the new version, and the hunk; None for the first that the corpus has."""

UPSTREAM_BY_OTHER_WORDS = ("361739e02c265a425c1e610084a09a4f31da25aa",)
"""Conflicts that stand in the new version in another form: what applies them does so once more."""

CARRIED = ("exact", "moved", "merged")


@dataclass(frozen=True)
class Outcome:
    """What a tool left: None for a refusal, otherwise the files that differ from the new version."""

    changed: Mapping[str, bytes] | None


@dataclass(frozen=True)
class Trial:
    """One hunk as a patch of its own, in a repository that has both versions."""

    case: Case
    answer: Answer
    hunk: Hunk
    old: bytes
    new: bytes | None
    repository: Path
    patch: Path
    versions: tuple[str, str]

    def git(self, *args: str) -> bytes:
        """Run git in the repository and return its output."""
        return _run(["git", *args], self.repository).stdout

    def verdict(self, outcome: Outcome) -> str:
        """Return what a person says of an outcome."""
        answer = self.answer.answer
        if outcome.changed is None:
            return "rejected" if answer in (*CARRIED, "already upstream") else "right"
        if not outcome.changed:
            return "right" if answer == "already upstream" else "wrong"
        if answer == "already upstream":
            return "twice"
        if answer == "conflict":
            name = "" if isinstance(self.case.patch, PatchFile) else self.case.patch.commit
            return "twice" if name in UPSTREAM_BY_OTHER_WORDS else "wrong"
        (path, content), *others = outcome.changed.items()
        wanted = self.answer.place if answer == "target gone" else self.answer.path
        if others or path != wanted:
            return "wrong"
        return "right" if answer == "target gone" or self._same_function(content) else "wrong"

    def _same_function(self, content: bytes) -> bool:
        assert self.new is not None
        expected = _inside(self.old, self.hunk.old_index + next(self.hunk.changes()).at)
        before, after = split_lines(self.new), split_lines(content)
        first = next(i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1])
        return _inside(self.new, first) == expected


def _inside(content: bytes, index: int) -> str:
    """Return the class and function around the line after `index` lines; empty for none and for other languages."""
    try:
        nodes: list[ast.AST] = [ast.parse(content)]
    except SyntaxError:
        return ""
    names = []
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.lineno <= index + 1 <= (node.end_lineno or 0):
                continue
            names.append(node.name)
        nodes.extend(ast.iter_child_nodes(node))
    return ".".join(names)


def _run(command: list[str], folder: Path, *, check: bool = True, input: bytes | None = None) -> _Done:
    identity = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = os.environ | identity | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, input=input)
    if check and done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.decode(errors='replace')}")
    return done


_Done = subprocess.CompletedProcess[bytes]


def trials(mirrors: UpstreamMirrors, upstreams: Path, scratch: Path) -> Iterator[Trial]:
    """Yield the chosen hunks, each in a repository of its own, which is removed afterwards."""
    for number, chosen in enumerate(CHOSEN):
        case, answer = _chosen(*chosen)
        repository = scratch / f"{number}"
        _run(["git", "init", "-q", "-b", "old", str(repository)], scratch)
        objects = upstreams / case.repository.replace("/", "+") / "repo/objects"
        (repository / ".git/objects/info/alternates").write_text(f"{objects}\n")
        versions = _commit(repository, case.start), _commit(repository, case.to)
        yield _trial(case, answer, mirrors, repository, versions)
        shutil.rmtree(repository)


def _commit(repository: Path, version: str) -> str:
    """Return a commit of a version without the over-size blobs that a snapshot may lack."""
    _run(["git", "read-tree", version], repository)
    entries = _run(["git", "ls-files", "-s", "-z"], repository).stdout.split(b"\0")[:-1]
    ids = b"".join(entry.split()[1] + b"\n" for entry in entries)
    found = _run(["git", "cat-file", "--batch-check"], repository, input=ids).stdout.splitlines()
    lacking = [e.partition(b"\t")[2] for e, f in zip(entries, found, strict=True) if f.endswith(b"missing")]
    _run(["git", "update-index", "--force-remove", "-z", "--stdin"], repository, input=b"\0".join(lacking))
    tree = _run(["git", "write-tree"], repository).stdout.decode().strip()
    return _run(["git", "commit-tree", "-m", version, tree], repository).stdout.decode().strip()


def _trial(
    case: Case, answer: Answer, mirrors: UpstreamMirrors, repository: Path, versions: tuple[str, str]
) -> Trial:
    mirror = mirrors.of(case.repository)
    hunk = next(h for h in mirrors.patch(case).hunks if h.number == answer.hunk)
    old, new = mirror.read(case.start, answer.path), mirror.read(case.to, answer.path)
    assert old is not None
    _run(["git", "checkout", "-q", "-f", "-B", "old", versions[0]], repository)
    lines = split_lines(old)
    lines[hunk.old_index : hunk.old_index + hunk.old_count] = hunk.new_lines
    (repository / answer.path).write_bytes(b"".join(lines))
    _run(["git", "commit", "-q", "-a", "-m", "The hunk"], repository)
    patch = repository.with_suffix(".patch")
    patch.write_bytes(_run(["git", "format-patch", "-1", "--stdout", "--full-index"], repository).stdout)
    return Trial(case, answer, hunk, old, new, repository, patch, versions)


def _chosen(name: str, to_name: str, hunk: int | None) -> tuple[Case, Answer]:
    for case in load_corpus():
        named = case.patch.path if isinstance(case.patch, PatchFile) else case.patch.commit
        if named.rpartition("/")[2] == name and case.to_name == to_name:
            for answer in case.answers:
                if hunk in (None, answer.hunk):
                    return case, answer
    raise LookupError(f"{name} to {to_name}, hunk {hunk} is not in the corpus")


def _left(trial: Trial) -> Outcome:
    """Return the files of the work tree that differ from the new version."""
    listing = trial.git("diff", "--name-only", "-z", trial.versions[1]).decode().split("\0")
    paths = [path for path in listing if path]
    return Outcome({path: (trial.repository / path).read_bytes() for path in paths})


def gnu_patch(trial: Trial) -> Outcome:
    """Apply it with `patch`."""
    trial.git("checkout", "-q", "-f", "-B", "new", trial.versions[1])
    done = _run(
        ["patch", "-p1", "-N", "-s", "-r", "-"], trial.repository, check=False, input=trial.patch.read_bytes()
    )
    return _left(trial) if done.returncode == 0 else Outcome(None)


def git_am(trial: Trial) -> Outcome:
    """Apply it with `git am -3`."""
    trial.git("checkout", "-q", "-f", "-B", "new", trial.versions[1])
    done = _run(["git", "am", "-3", "-q", "--keep-cr", str(trial.patch)], trial.repository, check=False)
    if done.returncode == 0:
        return _left(trial)
    _run(["git", "am", "--abort"], trial.repository)
    return Outcome(None)


def stgit(command: str) -> Callable[[Trial], Outcome]:
    """Return a function that carries it over with `stg rebase`."""

    def carry(trial: Trial) -> Outcome:
        trial.git("checkout", "-q", "-f", "-B", "stack", "old")
        for args in (["init"], ["uncommit"]):
            _run([command, *args], trial.repository)
        done = _run([command, "rebase", trial.versions[1]], trial.repository, check=False)
        return _left(trial) if done.returncode == 0 else Outcome(None)

    return carry


def npu_rl(mirrors: UpstreamMirrors) -> Callable[[Trial], Outcome]:
    """Return a function that judges it with npu-rl."""

    def carry(trial: Trial) -> Outcome:
        case, mirror = trial.case, mirrors.of(trial.case.repository)
        patch = parse_patch(trial.patch.read_bytes(), name=trial.patch.name)
        history = MirrorHistory(mirror, case.start, case.to)
        old, version = MirrorVersion(mirror, case.start), MirrorVersion(mirror, case.to)
        ported = port_patch(patch, old.read, version, history, MarkerNames(case.to_name, patch.name))
        if any(hunk.state in UNSOLVED for hunk in ported.hunks):
            return Outcome(None)
        files = {file.path: file.after for file in ported.files if file.after != file.before}
        return Outcome({path: content or b"" for path, content in files.items()})

    return carry


def main() -> None:
    """Run every tool over every hunk, and print the table."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--stg", default=shutil.which("stg"), help="the command of StGit; left out without one"
    )
    given = options.parse_args()
    upstreams = Path(os.environ["NPU_RL_UPSTREAMS"]).resolve()
    with tempfile.TemporaryDirectory() as folder, UpstreamMirrors(upstreams, Path(folder) / "env") as mirrors:
        tools = {"npu-rl": npu_rl(mirrors), "git am -3": git_am, "patch": gnu_patch}
        if given.stg:
            tools["stg rebase"] = stgit(given.stg)
        counts = {name: Counter[str]() for name in tools}
        print(f"| hunk | answer | {' | '.join(tools)} |")
        print(f"|{'---|' * (len(tools) + 2)}")
        for trial in trials(mirrors, upstreams, Path(folder)):
            verdicts = {name: trial.verdict(tool(trial)) for name, tool in tools.items()}
            for name, verdict in verdicts.items():
                counts[name][verdict] += 1
            file = f"{trial.case.repository} {Path(trial.answer.path).name}"
            where = f"{file}, hunk {trial.answer.hunk} to {trial.case.to_name}"
            print(f"| {where} | {trial.answer.answer} | {' | '.join(verdicts.values())} |", flush=True)
        for verdict in ("right", "rejected", "twice", "wrong"):
            print(f"| | {verdict} | {' | '.join(str(counts[name][verdict]) for name in tools)} |")


if __name__ == "__main__":
    main()
