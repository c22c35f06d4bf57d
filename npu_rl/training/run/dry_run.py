"""`--dry-run`: the resolved recipe, the composed configuration, and scripts that run it by hand."""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.disk import disk_errors
from npu_rl.common.masking import Secrets, masked_argument, masked_data, masked_value
from npu_rl.common.yaml_documents.finding import Finding
from npu_rl.common.yaml_documents.text_checks import split_address
from npu_rl.recipes.recipe.dump_recipe import recipe_yaml
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_command import PER_NODE_VARIABLES, Command
from npu_rl.recipes.trainer_keys.plain_config import config_text
from npu_rl.training.record.attempt import dump, write_private
from npu_rl.training.run import tiny_model
from npu_rl.training.run.ray_start import start_commands

if TYPE_CHECKING:
    from npu_rl.training.run.prepare import Prepared


RAISE_FILE_LIMIT = (
    "# Each rank of 256 opens over 1,000 sockets; often a process may have 1,024. As the published recipe sets it.",
    "most=$(ulimit -Hn)",
    'if [ "$most" = unlimited ] || [ "$most" -gt 32768 ]; then most=32768; fi',
    'if [ "$(ulimit -Sn)" != unlimited ] && [ "$(ulimit -Sn)" -lt "$most" ]; then ulimit -Sn "$most"; fi',
)
"""Lines of bash: raise the soft limit of open files to 32,768, or to the hard limit if that is lower."""


@dataclass(frozen=True)
class DryRun:
    """The result of `train --dry-run`.

    Attributes:
        command: The trainer's command, quoted for a shell, with secrets masked.
        proven: Whether the workspace equals its lock.
    """

    folder: Path
    files: tuple[str, ...]
    command: str
    proven: bool
    findings: tuple[Finding, ...]


def write(runs: Path, prepared: Prepared, command: Command, composed: Mapping[str, object]) -> DryRun:
    """Write runs/NAME.dry-run/ without secrets, replacing an earlier one. Starts nothing."""
    folder = runs / f"{prepared.recipe.name}.dry-run"
    known = prepared.secrets(os.environ)
    command = replace(command, config_file=folder / "config.yaml")
    argv = [known.mask(masked_argument(argument)) for argument in command.argv]
    files = {
        "command.json": dump(argv),
        "recipe.yaml": known.mask(recipe_yaml(prepared.loaded)),
        "composed.json": dump(masked_data(composed, known=known)),
        "environment.sh": environment_script(command, known),
        "run.sh": run_script(
            command, known, _refuse_without_address(prepared.recipe) + _make_tiny_model(runs, prepared)
        ),
        **ray_scripts(prepared.recipe, command, known),
    }
    if command.arguments is not None:
        files["config.yaml"] = config_text(masked_data(composed, known=known))
    with disk_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for name, text in files.items():
            write_private(folder / name, text.encode())
            if name.endswith(".sh"):
                (folder / name).chmod(0o700)
    findings = prepared.judgement.findings
    return DryRun(folder, tuple(files), shlex.join(argv), prepared.drift is None, findings)


def environment_script(command: Command, known: Secrets) -> str:
    """Return a script that sets the variables of the recipe's processes, except run-specific ones and Ray's own."""
    paths = shlex.quote(os.pathsep.join(command.paths))
    shared = {name: value for name, value in command.shared.items() if name not in PER_NODE_VARIABLES}
    lines = [
        "# Source this file (any POSIX shell) after CANN's set_env.sh: the variables of the recipe's processes.",
        *_export_lines(shared, known),
        f'case ":${{PYTHONPATH:-}}:" in *:{paths}:*) ;;',
        f'*) export PYTHONPATH={paths}"${{PYTHONPATH:+:$PYTHONPATH}}" ;; esac',
    ]
    return "\n".join(lines) + "\n"


def run_script(command: Command, known: Secrets, before: str = "") -> str:
    """Return the script that runs the driver, on the head node only. `before` has shell commands to run first."""
    lines = [
        "#!/bin/bash",
        "set -eu",
        '. "$(dirname "$0")/environment.sh"',
        *_export_lines({**command.own, **command.driver}, known),
        *([before] if before else []),
        'mkdir -p "$NPU_RL_USAGE"',
        "exec " + " \\\n  ".join(quote_argument(argument, known) for argument in command.argv),
    ]
    return "\n".join(lines) + "\n"


def _export_lines(variables: Mapping[str, str], known: Secrets) -> list[str]:
    return [export_line(name, value, known) for name, value in variables.items()]


def lacks_cluster_address(recipe: Recipe) -> bool:
    """Return whether the recipe needs a Ray on several machines and has no address of its head."""
    return recipe.cluster.nodes > 1 and not recipe.cluster.address


def _refuse_without_address(recipe: Recipe) -> str:
    """Return shell commands that end the script if the recipe lacks the address of Ray's head.

    Without it, the driver would start a Ray on this machine alone, and wait for the other machines' devices forever.
    """
    if not lacks_cluster_address(recipe):
        return ""
    message = f"{recipe.name} needs {recipe.cluster.nodes} machines: repeat --dry-run with cluster.address=HOST:PORT"
    return f"echo {shlex.quote(message)} >&2\nexit 2\n"


def _make_tiny_model(runs: Path, prepared: Prepared) -> str:
    """Return shell commands that make the recipe's tiny model and data, like `train`, unless they exist."""
    if not tiny_model.is_needed(prepared.recipe):
        return ""
    model = tiny_model.model_folder(runs, prepared.recipe, prepared.interpreter)
    made, part = shlex.quote(str(model)), shlex.quote(f"{model}.part")
    command = shlex.join(tiny_model.maker_command(prepared.interpreter, prepared.recipe, f"{model}.part"))
    own = " ".join(f"{name}={shlex.quote(value)}" for name, value in tiny_model.MAKER_ENVIRONMENT.items())
    return f"[ -d {made} ] || {{ rm -rf {part}; mkdir -p {part}; {own} {command}; mv {part} {made}; }}"


def ray_scripts(recipe: Recipe, command: Command, known: Secrets) -> dict[str, str]:
    """Return the scripts that start Ray on the head and on the other nodes, if the recipe has the head's address.

    They set only Ray's own variables: a run brings the environment of its workers along. Source: verl's multi-node
    guide.
    """
    if not recipe.cluster.address:
        return {}
    host, _ = split_address(recipe.cluster.address)
    head, worker = start_commands(recipe, command.python)
    begin = [
        "#!/bin/bash",
        "set -eu",
        *RAISE_FILE_LIMIT,
        *_export_lines(
            {name: value for name, value in command.shared.items() if name.startswith("RAY_")}, known
        ),
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
    """Return the node's address option: the script's argument, else `host` if it is an IP, else none."""
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        return '${1:+--node-ip-address="$1"}'
    return f'--node-ip-address="${{1:-{host}}}"'


_SECRET_MESSAGE = "a secret, which npu-rl does not write: set this variable in the shell"


def export_line(name: str, value: str, known: Secrets) -> str:
    """Return the line that sets a variable. A secret must be set in the shell, or the script ends."""
    if masked_value(name, known.mask(value)) == value:
        return f"export {name}={shlex.quote(value)}"
    return f'export {name}="${{{name}:?{_SECRET_MESSAGE}}}"'


def quote_argument(argument: str, known: Secrets) -> str:
    """Quote an argument for a shell. In KEY=VALUE with a secret, VALUE becomes a variable named after KEY."""
    if masked_argument(known.mask(argument)) == argument:
        return shlex.quote(argument)
    key, equals, _ = argument.partition("=")
    variable = re.sub(r"[^A-Z0-9]+", "_", key.upper()).strip("_") or "SECRET"
    return f'{shlex.quote(key + equals) if equals else ""}"${{{variable}:?{_SECRET_MESSAGE}}}"'
