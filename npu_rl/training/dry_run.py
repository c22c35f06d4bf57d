"""`--dry-run`: the resolved recipe, the composed configuration and scripts one could run by hand."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.disk import disk_errors, write_atomically
from npu_rl.recipes.render import Command
from npu_rl.recipes.text import recipe_yaml
from npu_rl.training import made

if TYPE_CHECKING:
    from npu_rl.training.prepare import Prepared

_PORT = 6766


@dataclass(frozen=True)
class Written:
    """folder: where it was written. files: their names. command: what would be run, as a shell would take it."""

    folder: Path
    files: tuple[str, ...]
    command: str


def write(runs: Path, prepared: Prepared, command: Command, composed: Mapping[str, object]) -> Written:
    """Write runs/NAME.dry-run/, anew each time. The run itself is not begun."""
    folder = runs / f"{prepared.recipe.name}.dry-run"
    files = {
        "recipe.yaml": recipe_yaml(prepared.loaded),
        "composed.json": json.dumps(composed, indent=2) + "\n",
        "command.json": json.dumps(command.argv, indent=2) + "\n",
        "environment.sh": environment_script(command),
        "run.sh": run_script(command, _make_first(runs, prepared)),
    }
    if prepared.recipe.cluster.nodes > 1:
        files |= node_scripts(prepared.recipe.cluster.dies)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_atomically(folder / name, text.encode())
            if name.endswith(".sh"):
                (folder / name).chmod(0o755)
    return Written(folder, tuple(files), shlex.join(command.argv))


def environment_script(command: Command) -> str:
    """To be sourced on every node, before `ray start`: Ray's workers inherit the environment of its raylet."""
    lines = ["# Source this on every node, after CANN's set_env.sh and before `ray start`."]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in command.environment.items()]
    return "\n".join(lines) + "\n"


def run_script(command: Command, before: str = "") -> str:
    """The driver, on the head node only. before: lines of shell that come first."""
    words = " \\\n  ".join(shlex.quote(word) for word in command.argv)
    begin = f'#!/bin/bash\nset -eu\n. "$(dirname "$0")/environment.sh"\n{before}'
    return f'{begin}mkdir -p "$NPU_RL_USAGE"\nexec {words}\n'


def _make_first(runs: Path, prepared: Prepared) -> str:
    """What makes the recipe's model and data, where it asks for that and they are not there."""
    recipe = prepared.recipe
    if not made.is_needed(recipe):
        return ""
    folder = shlex.quote(str(made.place(runs, recipe, prepared.interpreter)))
    python = shlex.quote(prepared.interpreter.path)
    return f"[ -d {folder} ] || {python} -m {made.MAKER} {folder} {recipe.seed} {recipe.data.rows}\n"


def node_scripts(dies: int) -> dict[str, str]:
    """`ray start` for the head and for the others. Source: verl's multi-node guide, and the seeds' scripts."""
    resources = shlex.quote(json.dumps({"NPU": dies}))
    begin = '#!/bin/bash\nset -eu\n. "$(dirname "$0")/environment.sh"\n'
    return {
        "head.sh": f"{begin}# usage: head.sh IP-OF-THIS-NODE\n"
        f'exec ray start --head --node-ip-address="$1" --port={_PORT} --resources={resources}\n',
        "worker.sh": f"{begin}# usage: worker.sh IP-OF-THE-HEAD IP-OF-THIS-NODE\n"
        f'exec ray start --address="$1:{_PORT}" --node-ip-address="$2" --resources={resources}\n',
    }
