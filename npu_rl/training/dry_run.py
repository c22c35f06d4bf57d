"""`--dry-run`: the resolved recipe, the composed configuration and scripts one could run by hand."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.disk import disk_errors
from npu_rl.masking import Secrets, masked_argument, masked_data, masked_value
from npu_rl.recipes.dump_recipe import recipe_yaml
from npu_rl.recipes.recipe_fields import split_address
from npu_rl.recipes.schema import Recipe
from npu_rl.recipes.trainer_command import PER_NODE_VARIABLES, Command, node_resources
from npu_rl.training import tiny_model
from npu_rl.training.attempt import dump, write_private

if TYPE_CHECKING:
    from npu_rl.training.prepare import Prepared


MORE_FILES = (
    "# Each rank of 256 opens over 1,000 sockets; often a process may have 1,024. As the published recipe sets it.",
    "most=$(ulimit -Hn)",
    'if [ "$most" = unlimited ] || [ "$most" -gt 32768 ]; then most=32768; fi',
    'if [ "$(ulimit -Sn)" != unlimited ] && [ "$(ulimit -Sn)" -lt "$most" ]; then ulimit -Sn "$most"; fi',
)
"""Lines of bash: raise the soft limit of open files to 32,768, or to the hard limit if that is lower."""


@dataclass(frozen=True)
class Written:
    """folder: where it was written. files: their names. command: what would be run, as a shell would take it."""

    folder: Path
    files: tuple[str, ...]
    command: str


def write(runs: Path, prepared: Prepared, command: Command, composed: Mapping[str, object]) -> Written:
    """Write runs/NAME.dry-run/ in place of an earlier one, without secrets. The run itself is not started."""
    folder = runs / f"{prepared.recipe.name}.dry-run"
    known = prepared.secrets(os.environ)
    argv = [known.mask(masked_argument(argument)) for argument in command.argv]
    files = {
        "recipe.yaml": known.mask(recipe_yaml(prepared.loaded)),
        "composed.json": dump(masked_data(composed, known=known)),
        "command.json": dump(argv),
        "environment.sh": environment_script(command, known),
        "run.sh": run_script(command, known, _without_head(prepared.recipe) + _make_first(runs, prepared)),
        **ray_scripts(prepared.recipe, command, known),
    }
    with disk_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for name, text in files.items():
            write_private(folder / name, text.encode())
            if name.endswith(".sh"):
                (folder / name).chmod(0o700)
    return Written(folder, tuple(files), shlex.join(argv))


def environment_script(command: Command, known: Secrets) -> str:
    """The environment of the recipe's processes, for work by hand; of no run, and none that Ray needs to start."""
    paths = shlex.quote(os.pathsep.join(command.paths))
    shared = {name: value for name, value in command.shared.items() if name not in PER_NODE_VARIABLES}
    lines = [
        "# Source this file (any POSIX shell) after CANN's set_env.sh: the variables of the recipe's processes.",
        *_exports(shared, known),
        f'case ":${{PYTHONPATH:-}}:" in *:{paths}:*) ;;',
        f'*) export PYTHONPATH={paths}"${{PYTHONPATH:+:$PYTHONPATH}}" ;; esac',
    ]
    return "\n".join(lines) + "\n"


def run_script(command: Command, known: Secrets, before: str = "") -> str:
    """The driver, on the head node only. before: lines of shell that come first."""
    lines = [
        "#!/bin/bash",
        "set -eu",
        '. "$(dirname "$0")/environment.sh"',
        *_exports({**command.own, **command.driver}, known),
        *([before] if before else []),
        'mkdir -p "$NPU_RL_USAGE"',
        "exec " + " \\\n  ".join(word(argument, known) for argument in command.argv),
    ]
    return "\n".join(lines) + "\n"


def _exports(variables: Mapping[str, str], known: Secrets) -> list[str]:
    return [export(name, value, known) for name, value in variables.items()]


def lacks_head(recipe: Recipe) -> bool:
    """Whether it needs a Ray on several machines and says nothing of where its head is."""
    return recipe.cluster.nodes > 1 and not recipe.cluster.address


def _without_head(recipe: Recipe) -> str:
    """A run by hand would start a Ray of its own on this machine, and wait for the others' dies for good."""
    if not lacks_head(recipe):
        return ""
    said = f"{recipe.name} needs {recipe.cluster.nodes} machines: repeat --dry-run with cluster.address=HOST:PORT"
    return f"echo {shlex.quote(said)} >&2\nexit 2\n"


def _make_first(runs: Path, prepared: Prepared) -> str:
    """What makes the recipe's model and data as `train` does, where it asks for that and they are not there."""
    if not tiny_model.is_needed(prepared.recipe):
        return ""
    folder = shlex.quote(str(tiny_model.place(runs, prepared.recipe, prepared.interpreter)))
    staging = tiny_model.maker(prepared.interpreter, prepared.recipe, "{}")
    words = " ".join('"$made.part"' if word == "{}" else shlex.quote(word) for word in staging)
    own = " ".join(f"{name}={shlex.quote(value)}" for name, value in tiny_model.MAKERS_OWN.items())
    return (
        f"made={folder}\n"
        'if [ ! -d "$made" ]; then\n'
        '  rm -rf "$made.part" && mkdir -p "$made.part"\n'
        f"  {own} {words}\n"
        '  mv "$made.part" "$made"\n'
        "fi"
    )


def ray_scripts(recipe: Recipe, command: Command, known: Secrets) -> dict[str, str]:
    """`ray start` for the head and for the others, where the recipe names a head. Source: verl's multi-node guide.

    What the workers of a run need travels with the run, so a cluster's own environment holds Ray's variables only.
    """
    if not recipe.cluster.address:
        return {}
    host, port = split_address(recipe.cluster.address)
    ray = [command.python, "-m", "ray.scripts.scripts", "start"]
    offers = [f"--{name.replace('_', '-')}={_text(value)}" for name, value in node_resources(recipe).items()]
    head = [*ray, "--head", f"--port={port}", *offers]
    worker = [*ray, f"--address={recipe.cluster.address}", *offers]
    begin = [
        "#!/bin/bash",
        "set -eu",
        *MORE_FILES,
        *_exports({name: value for name, value in command.shared.items() if name.startswith("RAY_")}, known),
    ]
    scripts = {
        "head.sh": [
            "# usage, after CANN's set_env.sh: head.sh [IP-OF-THIS-NODE]",
            f"exec {shlex.join(head)} {_own_address(host)}",
        ]
    }
    if recipe.cluster.nodes > 1:
        scripts["worker.sh"] = [
            "# usage, after CANN's set_env.sh: worker.sh [IP-OF-THIS-NODE]",
            f"exec {shlex.join(worker)} {_own_address(None)}",
        ]
    return {name: "\n".join([*begin, *lines]) + "\n" for name, lines in scripts.items()}


def _own_address(host: str | None) -> str:
    """The node's own address: what the script is told, else `host` if that is an IP, else Ray's choice."""
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        return '${1:+--node-ip-address="$1"}'
    return f'--node-ip-address="${{1:-{host}}}"'


def _text(value: object) -> str:
    return str(value) if isinstance(value, int) else json.dumps(value)


_MISSING = "a secret, which npu-rl does not write: set this variable in the shell"


def export(name: str, value: str, known: Secrets) -> str:
    """The line that sets a variable; a secret is taken from the shell, and the script ends if it is not there."""
    if masked_value(name, known.mask(value)) == value:
        return f"export {name}={shlex.quote(value)}"
    return f'export {name}="${{{name}:?{_MISSING}}}"'


def word(argument: str, known: Secrets) -> str:
    """An argument of a command. For KEY=VALUE with a secret the value is a variable named after the key."""
    if masked_argument(known.mask(argument)) == argument:
        return shlex.quote(argument)
    key, equals, _ = argument.partition("=")
    variable = re.sub(r"[^A-Z0-9]+", "_", key.upper()).strip("_") or "SECRET"
    return f'{shlex.quote(key + equals) if equals else ""}"${{{variable}:?{_MISSING}}}"'
