"""URL rewriting: how an air-gapped site points every manifest at its own mirrors.

Rules come from the command line (`--rewrite FROM=TO`), from `NPU_RL_REWRITE` (one FROM=TO per line)
and from the configuration file (`rewrite:` in `config.yaml`). The longest FROM that begins a URL wins;
of equal ones, the command line's, then the variable's. Credentials may stand in TO, never elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from npu_rl.errors import UsageError

SCHEMES = ("https", "http", "ssh", "git", "file")
_WITH_CREDENTIALS = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*://[^/@]*@")
_SCP_LIKE = re.compile(r"^(?![a-zA-Z][a-zA-Z0-9+.-]*://)[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:(?!:)")


def config_path() -> Path:
    """The configuration file: `NPU_RL_CONFIG`, else `config.yaml` in the user's configuration folder."""
    named = os.environ.get("NPU_RL_CONFIG")
    if named:
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_config_path("npu-rl")) / "config.yaml"


@dataclass(frozen=True)
class Rewrites:
    """Prefix rules, the strongest first."""

    rules: tuple[tuple[str, str], ...] = ()

    def apply(self, url: str) -> str:
        """The URL to ask instead. Raises UsageError if a rule leads to a scheme that is not allowed."""
        best: tuple[str, str] | None = None
        for prefix, target in self.rules:
            if url.startswith(prefix) and (best is None or len(prefix) > len(best[0])):
                best = (prefix, target)
        if best is None:
            return url
        result = best[1] + url[len(best[0]) :]
        if result.startswith("/"):
            result = "file://" + result
        check_url(result, where=f"rewrite {hide_credentials(best[0])}={hide_credentials(best[1])}")
        return result


def load_rewrites(options: Iterable[str] = ()) -> Rewrites:
    """All rules in force. Raises UsageError for one that is not FROM=TO, naming where it stands."""
    rules = [_rule(text, "--rewrite") for text in options]
    for line in os.environ.get("NPU_RL_REWRITE", "").splitlines():
        if line.strip():
            rules.append(_rule(line.strip(), "NPU_RL_REWRITE"))
    rules.extend(_configured(config_path()))
    return Rewrites(tuple(rules))


def _rule(text: str, where: str) -> tuple[str, str]:
    prefix, separator, target = text.partition("=")
    if not separator or not prefix or not target:
        raise UsageError(
            f"Not a rewrite rule: {hide_credentials(text)!r}",
            where=where,
            hint="Write FROM=TO, for example https://github.com/=https://mirror.example/github/",
        )
    return prefix, target


def _configured(path: Path) -> Sequence[tuple[str, str]]:
    if not path.is_file():
        return ()
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError("The configuration file can't be read", where=str(path), why=str(error)) from error
    rewrite = data.get("rewrite", {}) if isinstance(data, dict) else None
    unknown = sorted(set(data) - {"rewrite"}) if isinstance(data, dict) else []
    if not isinstance(rewrite, dict) or unknown or not all(
        isinstance(k, str) and isinstance(v, str) for k, v in rewrite.items()
    ):
        raise UsageError(
            "The configuration file is not as it should be",
            where=str(path),
            why=f"unknown keys: {', '.join(map(str, unknown))}" if unknown else None,
            hint="It holds one key, `rewrite`, with FROM: TO pairs of text.",
        )
    return tuple(rewrite.items())


def check_url(url: str, *, where: str | None = None) -> None:
    """Raise UsageError unless git may be given this URL."""
    scheme = url.partition("://")[0] if "://" in url else ""
    if url.startswith("-") or re.search(r"[\s\x00-\x1f\x7f]", url) or "::" in url.partition("/")[0]:
        raise UsageError(f"Not a URL git may be given: {hide_credentials(url)!r}", where=where)
    if scheme not in SCHEMES and not _SCP_LIKE.match(url):
        raise UsageError(
            f"Not a URL scheme npu-rl uses: {hide_credentials(url)!r}",
            where=where,
            hint=f"Allowed: {', '.join(s + '://' for s in SCHEMES)} and user@host:path.",
        )


def has_credentials(url: str) -> bool:
    """Whether something stands before an @ in the host part (a bare ssh user name does not count)."""
    found = _WITH_CREDENTIALS.match(url)
    if not found:
        return False
    return not url.startswith("ssh://") or ":" in found[0][len("ssh://") :]


def hide_credentials(url: str) -> str:
    """The URL, fit for a message."""
    return re.sub(r"(://)[^/@\s]*@", r"\1***@", url)
