"""Writing of a new workspace's files to a staging folder beside the old ones."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from npu_rl.common import byte_code
from npu_rl.common.errors import HostError
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.store import Unit
from npu_rl.workspace.folder.laid_files import ALTERNATES, REPOSITORY_SETTINGS


def lay_objects(units: Sequence[Unit], git_home: Path) -> None:
    """Give the workspace its own objects: packs, which never change, are hard-linked or copied."""
    packs = git_home / "objects" / "pack"
    packs.mkdir(parents=True, exist_ok=True)
    for unit in units:
        for path in sorted((unit.objects / "pack").iterdir()):
            target = packs / path.name
            if target.exists():
                continue
            try:
                os.link(path, target)
            except OSError:
                shutil.copyfile(path, target)


def lay_repository(git_home: Path, name: str, commit: str) -> Path:
    """Create a repository under `git_home` whose branch `main` is `commit`, with the shared objects as alternate."""
    repository = git_home / name
    init_bare(repository, bare=False)
    (repository / "objects" / "info" / "alternates").write_text(ALTERNATES)
    heads = repository / "refs" / "heads"
    heads.mkdir(parents=True, exist_ok=True)
    (heads / "main").write_text(commit + "\n")
    with (repository / "config").open("a", encoding="utf-8") as config:
        config.write(REPOSITORY_SETTINGS)
    return repository


def lay_files(repository: Path, tree: str, folder: Path) -> None:
    """Write a tree's files, with an index for users of git. Raises HostError, GitError."""
    folder.mkdir(parents=True)
    here = Git(
        repository,
        work_tree=folder,
        extra={"GIT_CONFIG_PARAMETERS": "'checkout.workers=0' 'checkout.thresholdForParallelism=200'"},
    )
    try:
        here.run("read-tree", "-u", "--reset", tree)
    except GitError as error:
        if "No space left" in error.stderr or "Disk quota" in error.stderr:
            raise HostError(
                "The disk is full", where=str(folder), why=error.stderr.splitlines()[0],
                hint="Free some space, then run again. The old workspace was not changed.",
            ) from error  # fmt: skip
        raise


def activate_script(env: Mapping[str, str]) -> str:
    """Return the script `activate`, which sets PYTHONPATH, the manifest's variables, and bytecode and run folders."""
    import shlex

    lines = [
        "# Source this file (bash or zsh): it puts this workspace's code on PYTHONPATH.",
        'if [ -n "${BASH_SOURCE:-}" ]; then _npu_rl_file="${BASH_SOURCE[0]}"',
        'elif [ -n "${ZSH_VERSION:-}" ]; then eval \'_npu_rl_file="${(%):-%x}"\'',
        'else _npu_rl_file="${NPU_RL_WORKSPACE:-.}/activate"; fi',
        'NPU_RL_WORKSPACE="$(CDPATH= cd -- "$(dirname -- "$_npu_rl_file")" && pwd)"; unset _npu_rl_file',
        "export NPU_RL_WORKSPACE",
        'case ":${PYTHONPATH:-}:" in *":$NPU_RL_WORKSPACE/code:"*) ;;',
        '*) export PYTHONPATH="$NPU_RL_WORKSPACE/code${PYTHONPATH:+:$PYTHONPATH}" ;; esac',
        "# Byte code could hide a change of its source, so none of the workspace's is read: this user's cache has it.",
        *byte_code.shell_lines(),
        'export NPU_RL_RUNS="${NPU_RL_RUNS:-$NPU_RL_WORKSPACE/runs}"',
    ]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    return "\n".join(lines) + "\n"


def check_room(folder: Path, needed: int) -> None:
    """Raise HostError, before anything is written, if the disk has less than `needed` bytes free."""
    with contextlib.suppress(FileNotFoundError, OSError):
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise HostError(
                "Not enough free disk space",
                where=str(folder),
                why=f"{needed / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free.",
                hint="Free some space, or choose another folder with --workspace.",
            )
