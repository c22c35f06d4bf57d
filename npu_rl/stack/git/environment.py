"""Environment and configuration of git processes.

Local commands use none of the user's configuration: ids and bytes must not depend on who runs them. Network commands
use the user's way to reach a host (proxies, certificates, ssh, credential helpers, `insteadOf`) and nothing else.
Each setting below fixes a failure that was seen without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

ALLOWED_PROTOCOLS = "https:http:ssh:git:file"

_NULL = os.devnull

# Settings that affect ids and bytes; set for every call.
LOCAL_SETTINGS: dict[str, str] = {
    "core.hooksPath": _NULL,
    "core.attributesFile": _NULL,
    "core.excludesFile": _NULL,
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.safecrlf": "false",
    "core.fileMode": "true",
    "core.symlinks": "true",
    "core.ignoreCase": "false",
    "core.precomposeUnicode": "false",
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.splitIndex": "false",
    "core.fsync": "none",  # packs are checked by hash at every use instead
    "core.looseCompression": "1",
    "apply.whitespace": "nowarn",
    "apply.ignoreWhitespace": "no",
    "merge.conflictStyle": "merge",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "fetch.negotiationAlgorithm": "noop",
    "fetch.unpackLimit": "1",
    "transfer.unpackLimit": "1",
    "fetch.fsckObjects": "false",  # real histories have old, harmless flaws
    "fetch.writeCommitGraph": "false",
    "fetch.prune": "false",
    "transfer.bundleURI": "false",
    "pack.indexVersion": "2",
    "protocol.version": "2",
    "protocol.ext.allow": "never",
    "filter.lfs.smudge": "cat",
    "filter.lfs.required": "false",
    "advice.detachedHead": "false",
    "http.followRedirects": "initial",
}

_ALWAYS = {
    "LC_ALL": "C",
    "LANGUAGE": "C",
    "TZ": "UTC",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_ALLOW_PROTOCOL": ALLOWED_PROTOCOLS,
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": ":",
}

# No prompts. (ssh has BatchMode, but setting GIT_SSH_COMMAND would override the user's own core.sshCommand; without a
# terminal ssh prompts only through these.)
_NO_QUESTIONS = {"SSH_ASKPASS_REQUIRE": "never", "GCM_INTERACTIVE": "never"}

# Settings of the user's that a fetch must honour: how to reach a host and who one is.
_KEPT_GIT_VARIABLES = re.compile(
    r"^GIT_(EXEC_PATH|SSH|SSH_COMMAND|SSH_VARIANT|SSL_\w+|PROXY_\w+|ASKPASS|HTTP_\w+"
    r"|CONFIG_(GLOBAL|SYSTEM|NOSYSTEM))$"
)
_KEPT_VARIABLES = ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "GIT_EXEC_PATH", "SYSTEMROOT")


@dataclass(frozen=True)
class Credentials:
    """User and password for one host ("https://host:port").

    git gets them from a helper that reads its own environment: in a URL they would appear in the command lines of
    git's transport helpers, in messages and configuration files, and the user's other helpers might store them.
    """

    place: str
    username: str = field(repr=False)
    password: str = field(repr=False)

    def configuration(self) -> list[tuple[str, str]]:
        """Return the settings that make the helper below the only one for this host."""
        key = f"credential.{self.place}.helper"
        return [(key, ""), (key, _HELPER)]  # the first one forgets every helper named before

    def environment(self) -> dict[str, str]:
        """Return the variables that the helper reads."""
        return {"NPU_RL_GIT_USERNAME": self.username, "NPU_RL_GIT_PASSWORD": self.password}


# printf is built into sh, so its arguments are no process's command line.
_HELPER = (
    '!f() { test "$1" != get || '
    r"printf 'username=%s\npassword=%s\n' "
    '"$NPU_RL_GIT_USERNAME" "$NPU_RL_GIT_PASSWORD"; }; f'
)


def local_environment() -> dict[str, str]:
    """Return the complete environment of a git process that does not use the network."""
    env = {k: os.environ[k] for k in _KEPT_VARIABLES if k in os.environ}
    env.update(_ALWAYS)
    env.update(
        HOME=_NULL,
        XDG_CONFIG_HOME=_NULL,
        GIT_CONFIG_NOSYSTEM="1",
        GIT_CONFIG_GLOBAL=_NULL,
        GIT_CONFIG_SYSTEM=_NULL,
    )
    env.update(_configuration(LOCAL_SETTINGS.items()))
    return env


def network_environment(
    extra: Mapping[str, str] | None = None, credentials: Credentials | None = None
) -> dict[str, str]:
    """Return the environment of a network command: the user's proxies, certificates, credential helpers, `insteadOf`.

    No PYTHON* variable is passed on: a credential helper may be a Python program, and in an activated workspace
    PYTHONPATH points into the tree, where a stray file would see the credentials.
    """
    env = {
        k: v
        for k, v in os.environ.items()
        if (not k.startswith("GIT_") or _KEPT_GIT_VARIABLES.match(k)) and not k.startswith("PYTHON")
    }
    if env.get("SSH_ASKPASS_REQUIRE") != "force":  # "force" means a script that answers, not a window
        env.pop("SSH_ASKPASS", None)
        env.update(_NO_QUESTIONS)
    env.update(_ALWAYS)
    settings = [*_users_settings(), *LOCAL_SETTINGS.items(), *(extra or {}).items()]
    if credentials is not None:
        settings += credentials.configuration()
        env.update(credentials.environment())
    env.update(_configuration(settings))
    return env


def _users_settings() -> list[tuple[str, str]]:
    """Return the user's settings in GIT_CONFIG_COUNT, which CI systems use for credentials and `insteadOf`."""
    count = os.environ.get("GIT_CONFIG_COUNT", "")
    if not count.isdecimal():
        return []
    pairs = [
        (os.environ.get(f"GIT_CONFIG_KEY_{i}"), os.environ.get(f"GIT_CONFIG_VALUE_{i}"))
        for i in range(min(int(count), 10_000))
    ]
    return [(key, value) for key, value in pairs if key is not None and value is not None]


def _configuration(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return settings as environment variables, which appear neither in a file nor in the output of `ps`."""
    variables = {"GIT_CONFIG_COUNT": "0"}
    for number, (key, value) in enumerate(pairs):
        variables[f"GIT_CONFIG_KEY_{number}"] = key
        variables[f"GIT_CONFIG_VALUE_{number}"] = value
        variables["GIT_CONFIG_COUNT"] = str(number + 1)
    return variables
