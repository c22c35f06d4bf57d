"""CANN's and NNAL's set_env.sh: the variables they set, and whether this shell has them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.training.host.bounded_command import run_bounded
from npu_rl.training.injected.npu_rl_host import below

CANN, NNAL = "CANN", "NNAL"
_SCRIPTS = {
    CANN: ("/usr/local/Ascend/ascend-toolkit/set_env.sh", "/usr/local/Ascend/cann/set_env.sh"),
    NNAL: ("/usr/local/Ascend/nnal/atb/set_env.sh",),
}
_HOMES = {CANN: "ASCEND_HOME_PATH", NNAL: "ATB_HOME_PATH"}  # set by each script
_MISSING = "there is no such file"
_OUTPUT = 1 << 20  # bytes of an environment
# What the script prints goes to /dev/null, and it gets no arguments; `env -0` alone writes to our pipe.
_SOURCE = 'exec 3>&1 >/dev/null 2>&1 </dev/null; script=$1; shift; . "$script"; exec env -0 >&3'


@dataclass(frozen=True)
class SetEnv:
    """A set_env.sh and the effect of sourcing it.

    Attributes:
        part: CANN or NNAL.
        place: The script on the host; the usual place if there is none.
        problem: Why it could not be sourced; "" if it could.
        values: The variables that a shell has after it.
    """

    part: str
    place: str
    problem: str = ""
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> bool:
        """Return whether the host lacks the script."""
        return self.problem == _MISSING


def source_set_env(root: Path, environ: Mapping[str, str], part: str, seconds: float) -> SetEnv:
    """Source a script in a separate shell without standard input, with a time limit."""
    place = _place(root, environ, part)
    script = below(str(root), place)
    if not Path(script).is_file():
        return SetEnv(part, place, _MISSING)
    # NNAL's imports torch to learn its ABI, which would import torch_npu, and that takes long.
    kept = {name: value for name, value in environ.items() if name not in ("BASH_ENV", "ENV", "LD_PRELOAD")}
    environment = {**kept, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    argv = ["bash", "--noprofile", "--norc", "-c", _SOURCE, "bash", script]
    outcome = run_bounded(argv, environment, Path("/"), seconds=seconds, most=_OUTPUT)
    if outcome.problem:
        return SetEnv(part, place, outcome.problem)
    values = _variables(outcome.output)
    if outcome.code or not values:
        return SetEnv(part, place, f"it ended the shell that sourced it (exit status {outcome.code})")
    return SetEnv(part, place, "", values)


def lacking(script: SetEnv, environ: Mapping[str, str]) -> list[str]:
    """Return the variables that sourcing the script would change here, or that lack one of its folders.

    Lists of folders (NAME_PATH with colons) are compared folder by folder: a shell that has sourced it twice, or has
    more in front, has all it needs. Another value that names no folder is the user's own choice, such as one of ATB's
    switches that was set after sourcing.
    """
    ignored = {"_", "SHLVL", "PWD", "OLDPWD", "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    differ = []
    for name, value in script.values.items():
        if name in ignored or environ.get(name) == value:
            continue
        here = environ.get(name)
        if here is None or ("/" in value and set(filter(None, value.split(":"))) - set(here.split(":"))):
            differ.append(name)
    return sorted(differ)


def _place(root: Path, environ: Mapping[str, str], part: str) -> str:
    """Return the script beside the sourced installation, which a user's home may have, or else the usual one."""
    for place in (*_beside(environ, part), *_SCRIPTS[part]):
        if Path(below(str(root), place)).is_file():
            return place
    return _SCRIPTS[part][0]


def _beside(environ: Mapping[str, str], part: str) -> list[str]:
    home = environ.get(_HOMES[part], "").rstrip("/")
    if not home.startswith("/"):
        return []
    if part == NNAL:  # .../nnal/atb/latest/atb/cxx_abi_0, as in npu_rl_host.py
        return [os.path.normpath(f"{home}/../../../set_env.sh")]
    # .../ascend-toolkit/latest, which is a link into the folder or out of it; CANN 8.5 has .../cann
    return [f"{Path(home).parent}/set_env.sh", f"{home}/set_env.sh", f"{home}/../set_env.sh"]


def _variables(output: bytes) -> dict[str, str]:
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in output.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals and name.isidentifier()}
