"""URL rewriting, which lets a site without internet access redirect all manifests to its own mirrors.

Rules come from the command line (`--rewrite FROM=TO`), from `NPU_RL_REWRITE` (one FROM=TO per line)
and from the configuration file (`rewrite:` in `config.yaml`). The longest FROM that begins a URL wins;
of equal ones, the command line's, then the variable's. Only TO may contain credentials.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from npu_rl.common.environment_variables import REWRITE
from npu_rl.common.errors import UsageError
from npu_rl.common.masking import MASK
from npu_rl.common.user_settings import read_configuration
from npu_rl.common.yaml_documents.text_checks import check_form
from npu_rl.stack.git.environment import Credentials

_INVALID = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True)
class Rewrites:
    """Prefix rules in order of precedence."""

    rules: tuple[tuple[str, str], ...] = ()

    def apply(self, url: str) -> str:
        """Return the rewritten URL. Raises UsageError if the result is not a valid git URL."""
        fitting = [rule for rule in self.rules if url.startswith(rule[0])]
        if not fitting:
            return url
        prefix, target = max(fitting, key=lambda rule: len(rule[0]))  # the first of equal ones
        result = target + url[len(prefix) :]
        if result.startswith("/"):
            result = f"file://{quote(target)}{url[len(prefix) :]}"
        check_url(result, where=f"rewrite {hide_credentials(prefix)}={hide_credentials(target)}")
        return result


def load_rewrites(options: Iterable[str] = ()) -> Rewrites:
    """Return all active rules. Raises UsageError, with its source, for one that is not FROM=TO."""
    rules = [_rule(text, f"--rewrite, number {number}") for number, text in enumerate(options, 1)]
    for number, line in enumerate(os.environ.get(REWRITE.name, "").splitlines(), 1):
        if line.strip():
            rules.append(_rule(line.strip(), f"{REWRITE.name}, line {number}"))
    rules.extend(read_configuration().rewrite)
    return Rewrites(tuple(rules))


def _rule(text: str, where: str) -> tuple[str, str]:
    prefix, separator, target = text.partition("=")
    if not separator or not prefix or not target:
        why = "It has no `=`." if not separator else "TO is empty." if prefix else "FROM is empty."
        raise UsageError(  # without its text, which may be a token
            "Invalid rewrite rule",
            where=where,
            why=why,
            hint="Write FROM=TO, for example https://github.com/=https://mirror.example/github/",
        )
    return prefix, target


def check_url(url: str, *, where: str | None = None) -> None:
    """Raise UsageError unless the URL is safe for git; it may have credentials if it is http or https."""
    plain, credentials = split_credentials(url)
    try:
        check_form(plain)
        if credentials and _INVALID.search(credentials.username + credentials.password):
            raise ValueError("spaces or control characters in its credentials")
    except ValueError as error:
        raise UsageError(
            f"Unsupported git URL: {hide_credentials(url)!r}",
            where=where,
            why=str(error),
            hint="Write special characters in a user or password as %XX.",
        ) from None


def split_credentials(url: str) -> tuple[str, Credentials | None]:
    """Split an http or https URL into the URL without credentials, and the credentials.

    A user name without a password counts as a token, as servers treat it.
    """
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, place = authority.rpartition("@")
    if scheme not in ("http", "https") or not at:
        return url, None
    name, _, password = user.partition(":")
    plain = f"{scheme}://{place}"
    return f"{plain}{slash}{path}", Credentials(plain, unquote(name), unquote(password))


def hide_credentials(url: str) -> str:
    """Mask the credentials of a URL or rewrite rule for a message, if in doubt too much.

    Everything from the first :// to the last @ is masked; without ://, all but the user of user@host:path.
    """
    before, at, host = url.rpartition("@")
    scheme, separator, _ = before.partition("://")
    if separator:
        return f"{scheme}{separator}{MASK}@{host}"
    return f"{MASK}@{host}" if at and ":" in before else url
