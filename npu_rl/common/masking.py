"""Masking of secrets in files and messages.

Three independent rules: a value is masked if its name is that of a secret; the user and password of a URL always; and
a value that is known to be a secret (`Secrets`) wherever it appears. Text is searched by words: the rest of a secret
with spaces is masked only by value.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

MASK = "***"

_ALWAYS = (
    r"secret|passw|passphrase|passcode|credential|bearer|cookie|webhook|jwt"
    r"|(?:api|access|private|signing)[_-]?key"
)
# `TOKENIZERS_PARALLELISM` and `GIT_AUTHOR_NAME` hold no secret, `HTTP_AUTHORIZATION` and `GITLAB_PAT` do.
_VARIABLE = re.compile(
    rf"{_ALWAYS}|token(?!iz)|auth(?!or(?!i))|\Akey\Z|_keys?(?:\Z|_)|key\Z|_(?:pass|pwd|pat)\Z|\Apass\Z",
    re.IGNORECASE,
)
# Keys of a trainer: `max_token_len` is a size, `eos_token` a token of the model, `prompt_key` the name of a column.
_SPECIAL = "bos|eos|pad|unk|mask|sep|cls|stop|special|image|video|audio|start|end|new|next|first|last|per"
_KEY = re.compile(
    rf"{_ALWAYS}|(?<![a-z])(?:token|auth|oauth|authorization|pass|pwd)\Z|_key\Z|[a-z]Token\Z", re.IGNORECASE
)
_COLUMN = re.compile(r"[a-z]+(?:_[a-z]+)*")
_NO_KEY = re.compile(rf"(?:\A|[_-])(?:{_SPECIAL})_token\Z", re.IGNORECASE)
_VERSION = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4}){2,3}(?:[a-z]{1,4}[0-9]{1,4})?(?:\+[a-z0-9.]{1,12})?")
"""A package's version: tiktoken, PyJWT and secretstorage are packages."""
_PLAIN_VALUE = re.compile(  # a size or a switch
    r"[+-]?[0-9]{1,9}|[0-9]*\.[0-9]{1,6}|true|false|yes|no|on|off|none|null|~|", re.IGNORECASE
)
_STRONG = re.compile(rf"{_ALWAYS}|pass|pwd|key", re.IGNORECASE)

# A password, or a token in the place of the user: `https://TOKEN@host`. `ssh://git@host` holds no secret. Spaces and
# slashes are not allowed in a password, but are written: of `u:p/w@host` and `host:80/a@b` the second has a port.
_USERINFO = re.compile(
    r"://(?P<user>[^/@\n:]{0,1000}:[^/\n]{0,2001}"
    r"|[^/?#@:\s]{1,1000}:(?![0-9]{1,5}(?:[/?#\s'\"]|\Z))[^\n@]{0,1000}"
    r"|(?:(?<=http://)|(?<=https://))[^/\n]{1,1000})@",
    re.IGNORECASE,
)
_QUERY = re.compile(
    r"(?P<name>[?&][^=&\s?]{0,100}(?:token|secret|passw|signature|credential|api_?key|[_-]key|sig)[^=&\s?]{0,100}=)[^&\s'\"#]+",
    re.IGNORECASE,
)
# NAME=VALUE, 'NAME': VALUE of a printed mapping, the header of HTTP, and NAME: VALUE on a line of YAML.
_NAME = r"(?P<key>[A-Za-z_][\w.-]{0,200})"
_ASSIGNED = re.compile(
    rf"(?<![\w.+~-])(?P<name>[+~-]{{0,2}}{_NAME}"
    r"(?:\\{0,3}['\"]? ?= ?|\\{0,3}['\"]\s?:\s?|: (?=Bearer |Basic )))"
    r"(?P<quote>\\{0,3}['\"]|Bearer |Basic |)(?![A-Za-z_][\w.-]{0,200}=[\w'\"])(?P<value>[^\s,;)}\]'\"\\]+)"
)
_YAML = re.compile(rf"^(?P<name>[ \t-]{{0,200}}{_NAME}: )(?P<quote>)(?P<value>\S.*)$", re.MULTILINE)
_SHORTEST = 6  # characters; a shorter secret is masked by name, not in every word that contains it
_SHORTEST_WORD = 8  # the same for one of small letters only

Path = Sequence[str]


# -- by name -------------------------------------------------------------------------------------------


def masked_value(name: str, value: str) -> str:
    """Mask the value of an environment variable if its name is that of a secret; else only passwords in URLs."""
    return MASK if _is_secret_variable(name, value) else masked_text(value)


def masked_data(data: Any, path: Path = (), *, known: Secrets | None = None) -> Any:
    """Mask the secrets in plain data (mappings, lists, scalars); data without secrets is returned as the same object.

    Args:
        path: The keys above it. The value of a secret's key is masked as a whole.
    """
    if data is None or isinstance(data, bool) or data in ({}, [], ()):
        return data
    if _is_secret(path, str(data)):
        return MASK
    if isinstance(data, Mapping):
        return {
            key: masked_data(value, (*path, *str(key).split(".")), known=known) for key, value in data.items()
        }
    if isinstance(data, (list, tuple)):
        return [masked_data(value, path, known=known) for value in data]
    if not isinstance(data, str):
        return data
    shown = masked_text(known.mask(data) if known else data)
    return data if shown == data else shown


def masked_argument(argument: str) -> str:
    """Mask the value of a command's argument KEY=VALUE if the key is that of a secret."""
    key, equals, value = argument.partition("=")
    if equals and _is_secret(key.lstrip("+~-").split("."), value):
        return f"{key}={MASK}"
    return f"{key}{equals}{masked_text(value)}" if equals else masked_text(argument)


def masked_text(text: str) -> str:
    """Mask passwords in URLs, and the word after the name of a secret, in text such as a message or a log."""
    shown = _ASSIGNED.sub(_masked_assignment, without_passwords(text))
    return _YAML.sub(_masked_assignment, shown)


def without_passwords(text: str) -> str:
    """Mask users, passwords, and signatures and tokens in queries in the URLs of a text."""
    if "://" not in text:
        return text
    return _QUERY.sub(rf"\g<name>{MASK}", _USERINFO.sub(f"://{MASK}@", text))


def _masked_assignment(found: re.Match[str]) -> str:
    if _is_secret(found["key"].split("."), found["value"]):
        return found["name"] + found["quote"] + MASK
    return found[0]


def _is_secret(path: Path, value: str) -> bool:
    """Return whether the value of these keys is a secret. Keys below `env` or in capitals are variables."""
    variables = "env" in path[:-1]
    return any(
        _is_secret_variable(name, value) and len(name) > 3
        if variables or name.upper() == name
        else _is_secret_key(name, value)
        for name in path
    )


def _is_secret_variable(name: str, value: str) -> bool:
    if not value or not _VARIABLE.search(name) or _VERSION.fullmatch(value):
        return False
    return bool(_STRONG.search(name)) or not _PLAIN_VALUE.fullmatch(value)


def _is_secret_key(name: str, value: str) -> bool:
    if not _KEY.search(name) or _NO_KEY.search(name) or _VERSION.fullmatch(value):
        return False
    if re.search(_ALWAYS, name, re.IGNORECASE):
        return bool(value)
    is_column = name.lower().endswith("_key") and _COLUMN.fullmatch(value)
    return not (is_column or _PLAIN_VALUE.fullmatch(value))


# -- by value ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Secrets:
    """Known secrets, in every encoding that files may contain, longest first."""

    forms: tuple[str, ...] = ()

    @classmethod
    def of(cls, environment: Mapping[str, str], data: Any = None) -> Secrets:
        """Collect the secrets of an environment, and of a recipe's or configuration's plain data."""
        values = {value for name, value in environment.items() if _is_secret_variable(name, value)}
        scalars = list(_scalars(data, ()))
        values.update(value for path, value in scalars if _is_secret(path, value))
        for text in (*environment.values(), *(value for _, value in scalars)):
            values.update(_passwords(text))
        lines = (line for value in values for line in (value, *value.splitlines()))
        forms = {form for value in lines if _is_distinct(value) for form in _forms(value)}
        return cls(tuple(sorted(forms, key=lambda form: (-len(form), form))))

    def mask(self, text: str) -> str:
        """Mask these values in a text."""
        for form in self.forms:
            if form in text:
                text = text.replace(form, MASK)
        return text


def _is_distinct(value: str) -> bool:
    """Return whether a value is specific enough to mask: `MY_KEY=data` must not mask every `data`."""
    if _PLAIN_VALUE.fullmatch(value) or (value.startswith("/") and os.path.lexists(value)):
        return False  # a path, such as HF_TOKEN_PATH's, is not a secret itself
    return len(value) >= (_SHORTEST_WORD if value.isalpha() and value.islower() else _SHORTEST)


def _forms(value: str) -> Iterator[str]:
    yield from (value, quote(value), quote(value, safe=""), repr(value)[1:-1], value.replace("'", "''"))
    yield from (json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))


def _scalars(data: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield each scalar of plain data as text, with the keys above it."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _scalars(value, (*path, *str(key).split(".")))
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from _scalars(value, path)
    elif data is not None and not isinstance(data, bool):
        yield path, str(data)


def _passwords(text: str) -> Iterable[str]:
    """Yield the passwords in the URLs of a text, as written and decoded."""
    if "://" not in text:
        return
    for found in _USERINFO.finditer(text):
        user, _, password = found["user"].partition(":")
        yield from (password or user, unquote(password or user))
