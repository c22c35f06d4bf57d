"""Checks of single values: names, refs, paths, URLs, requirements.

Each check returns its text, or raises ValueError with what is wrong and what to write. No check imports pydantic or
yaml, so that modules on the start-up path can use them.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Callable

from npu_rl.common.yaml_documents.problems import shown

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
PIN_PATTERN = r"^[0-9a-f]{40}$"
SHA256_PATTERN = r"^[0-9a-f]{64}$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
PATCHSET_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]*/[A-Za-z0-9][A-Za-z0-9._+-]*$"
DISTRIBUTION_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
GROUP_PATTERN = r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$"
OBJECT_PATTERN = (
    r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
)
ADDRESS_PATTERN = r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
URL_PATTERN = (
    r"^((https?|ssh|git)://[^ ]+|file://(localhost)?/[^ ]+"
    r"|[A-Za-z0-9_][A-Za-z0-9._+-]*@[A-Za-z0-9\[][^ ]*:[^ ]+)$"
)
MAXIMUM_DEPTH = (
    200  # folders above a file; real trees have a dozen, and 2,000 fill the longest path Linux takes
)

_LONGEST = 100  # characters of a name
_LONGEST_SEGMENT = 255  # bytes; what Linux and macOS file systems hold
_RELATIVE = "write a relative path with '/' as the separator"
# Variables that control which code runs or which files the tools read: only npu-rl sets them.
_CODE_VARIABLES = re.compile(
    r"PATH|HOME|IFS|ENV|BASH_ENV|SHELLOPTS|BASHOPTS|LD_AUDIT|GIT_.*"
    r"|PYTHON(PATH|HOME|STARTUP|USERBASE|PYCACHEPREFIX|EXECUTABLE|PLATLIBDIR|BREAKPOINT|INSPECT)"
)
# Characters HFS+ ignores in names: git's own list (utf8.c, next_hfs_char).
_HFS_IGNORES = re.compile(r"[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
# The rules of `git check-ref-format`, and that no component begins with '-'.
_REF_FAULTS = {
    r"[\x00-\x20\x7f~^:?*\[\\]": "a ref must not contain %s: write a full commit id or refs/...",
    r"\.\.|@\{": "a ref must not contain '..' or '@{': write one full commit id or refs/...",
    r"^/|//|/$": "a ref must not have an empty component: remove the '//', or the '/' at its start or end",
    r"(^|/)[.-]|\.lock(/|$)": "no component of a ref may begin with '.' or '-', or end with '.lock'",
    r"\.$": "a ref must not end with '.'",
}


def _matches(pattern: str, value: str) -> bool:
    return re.fullmatch(pattern[1:-1], value) is not None


def _matching(pattern: str, otherwise: str) -> Callable[[str], str]:
    """Return the check of a pattern, and what is wrong with a value that does not match."""

    def check(value: str) -> str:
        if not _matches(pattern, value):
            raise ValueError(f"{shown(value)} {otherwise}")
        return value

    return check


check_sha256 = _matching(
    SHA256_PATTERN, "is not a SHA-256 digest, 64 lower case hexadecimal digits: sha256sum FILE prints it"
)
check_pin = _matching(PIN_PATTERN, "is not a full commit id: write its 40 lower-case hex digits")
check_distribution = _matching(
    DISTRIBUTION_PATTERN, "is not a valid distribution name: use letters, digits, '.', '_' or '-'"
)
check_group = _matching(GROUP_PATTERN, "is not an entry-point group, such as vllm.platform_plugins")
check_object = _matching(OBJECT_PATTERN, "is not module:attribute, such as vllm_ascend:register")


def check_text(value: str) -> str:
    """Check one line of text that is not empty."""
    if not value.strip():
        raise ValueError("must not be empty")
    if _unprintable(value):
        raise ValueError("must be one line without control characters")
    return value


def _unprintable(value: str) -> bool:
    return any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in value)


def check_name(value: str) -> str:
    """Check the name of a manifest or component, which becomes part of file names and refs."""
    if not _matches(NAME_PATTERN, value) or len(value) > _LONGEST:
        raise ValueError(
            f"{shown(value)} is not a valid name: begin with a letter or digit,"
            f" then letters, digits, '.', '_' or '-', at most {_LONGEST} characters"
        )
    if ".." in value or value.endswith((".", ".lock")):
        raise ValueError(
            f"{shown(value)} is not a valid name: it must not contain '..' or end in '.' or '.lock'"
        )
    return value


# -- refs and URLs -------------------------------------------------------------------------------------


def check_full_ref(value: str) -> str:
    """Check a full commit id (40 lower-case hex digits) or a full ref name (refs/...), by git's own rules."""
    if _matches(PIN_PATTERN, value):
        return value
    if _matches(r"^[0-9A-Fa-f]{40}$", value):
        raise ValueError(f"write the commit id in lower case: {value.lower()}")
    if _matches(r"^[0-9A-Fa-f]{4,39}$", value):
        raise ValueError(
            f"{shown(value)} is a short commit id, which can become ambiguous as the repository grows:"
            " write all 40 digits (git rev-parse prints them)"
        )
    ref = value if value.startswith("refs/") else f"refs/heads/{value}"
    for pattern, why in _REF_FAULTS.items():
        if found := re.search(pattern, ref):
            raise ValueError(why.replace("%s", shown(found[0])))
    if ref != value:
        why = "is a short ref name, which a branch and a tag can share"
        raise ValueError(f"{shown(value)} {why}: write {_full_refs(value)}")
    return value


def _full_refs(value: str) -> str:
    if value.startswith(("heads/", "tags/", "remotes/", "pull/")):
        return f"refs/{value}"
    bare = value.removeprefix("origin/")
    return f"refs/tags/{bare} or refs/heads/{bare}, or the full commit id"


SCHEMES = ("https", "http", "ssh", "git", "file")
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])"
_USER = r"[A-Za-z0-9_][A-Za-z0-9._+-]*"
_WEB = re.compile(rf"(?:[^/@]*@)?{_HOST}(?::[0-9]{{1,5}})?/[^/].*")
_REMOTE = re.compile(rf"(?:{_USER}@)?{_HOST}(?::[0-9]{{1,5}})?/[^/].*")
_SCP = re.compile(rf"{_USER}@{_HOST}:(?![-:]).+")
_FORMS = f"use {', '.join(f'{scheme}://' for scheme in SCHEMES)}/absolute/path or user@host:path"


def check_git_url(value: str) -> str:
    """Check a URL without a secret, since URLs are copied into the lock. Messages don't quote secrets."""
    scheme, _, rest = value.partition("://")
    user, at, _ = rest.split("/")[0].rpartition("@")
    if at and (":" in user or scheme in ("http", "https")):
        raise ValueError(
            "a URL must not contain a user, password or token, since it is copied into the lock:"
            " use a credential helper, netrc or --rewrite"
        )
    if re.search(r"[?#]", rest):
        raise ValueError(
            "a git URL must not contain '?' or '#': remove that part, and use a credential helper for secrets"
        )
    check_form(value)
    return value


def check_form(value: str) -> None:
    """Raise ValueError unless a URL is safe for git, which also accepts options, and remotes that run commands."""
    if re.search(r"[\x00-\x20\x7f-\xa0\u2028\u2029]", value):
        raise ValueError("a URL must not contain spaces or control characters")
    scheme, separator, rest = value.partition("://")
    if not separator:
        if not _SCP.fullmatch(value):
            raise ValueError(f"this is not a git URL: {_FORMS}")
    elif scheme not in SCHEMES:
        raise ValueError(f"the scheme {shown(scheme)} is not allowed: {_FORMS}")
    elif scheme == "file":
        if not re.fullmatch(r"(?:localhost)?/[^/].*", rest):
            raise ValueError("a file URL needs an absolute path: file:///absolute/path")
    elif not (_WEB if scheme in ("http", "https") else _REMOTE).fullmatch(rest):
        raise ValueError(f"the URL has no valid host or no path: write {scheme}://host/path")


# -- paths ---------------------------------------------------------------------------------------------


def name_as_compared(name: str) -> str:
    """Return a file name as the least strict file systems compare it.

    They ignore case, some characters (HFS+), and trailing dots, spaces and streams (NTFS).
    """
    plain = name if name.isascii() else _HFS_IGNORES.sub("", name)
    return re.split(r"[:\\]", plain, maxsplit=1)[0].rstrip(" .").casefold()


def is_dot_git(name: str) -> bool:
    """Return whether some file system reads the name as `.git`."""
    return name_as_compared(name) in (".git", "git~1")


def invalid_name_reason(name: str) -> str | None:
    """Return why a name can't be checked out on every file system; None if it can."""
    if not name or name in (".", ".."):
        return f"a path component is '{name}'"
    try:
        size = len(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return "a path component is not valid text"
    if size > _LONGEST_SEGMENT:
        return f"a path component is longer than {_LONGEST_SEGMENT} bytes"
    if is_dot_git(name):
        return f"{name!a} is git's own folder on some file systems"
    return None


def check_path(value: str) -> str:
    """Check a relative POSIX path that stays inside its folder and has no `.git` component."""
    if not value:
        raise ValueError("a path must not be empty; '.' means the root")
    if value == ".":
        return value
    segments = value.split("/")
    if value.startswith(("/", "~")):
        why = f"is absolute: {_RELATIVE}"
    elif value.startswith("-"):
        why = "begins with '-', so git would read it as an option"
    elif "\\" in value:
        why = f"contains a backslash: {_RELATIVE}"
    elif _unprintable(value):
        why = "contains a control or invisible character"
    elif "" in segments:
        why = "has an empty component: remove the '//', or the '/' at its end"
    elif dots := next((one for one in segments if one in (".", "..")), ""):
        why = f"contains {dots!r}: write the path without it"
    elif any(map(is_dot_git, segments)):
        why = "is inside git's own folder"
    elif len(segments) > MAXIMUM_DEPTH + 1:
        why = f"is more than {MAXIMUM_DEPTH} folders deep"
    else:
        reason = next(filter(None, map(invalid_name_reason, segments)), None)
        if reason is None:
            return value
        raise ValueError(f"{shown(value)}: {reason}")
    raise ValueError(f"{shown(value)} {why}")


def check_local_path(value: str) -> str:
    """Check a path relative to the manifest, which may begin with './' or any number of '../'."""
    rest = value.removeprefix("./")
    while rest.startswith("../"):
        rest = rest.removeprefix("../")
    if rest in ("", ".."):
        raise ValueError(f"{shown(value)} does not name a file or folder")
    check_path(rest.removesuffix("/"))
    return value


def is_local(value: str) -> bool:
    """Return whether a patch path is relative to the manifest, not the name of a bundled patchset."""
    return value.startswith(("./", "../"))


def check_patch_path(value: str) -> str:
    """Check a bundled patchset `component/version`, or a path that begins with './' or '../'."""
    if is_local(value):
        return check_local_path(value)
    if _matches(PATCHSET_PATTERN, value):
        return value
    if value.startswith(("/", "~")):
        raise ValueError(
            f"{shown(value)} is absolute: write a path relative to the manifest, such as ./patches"
        )
    raise ValueError(
        f"{shown(value)} is neither a bundled patchset (component/version)"
        " nor a path relative to the manifest: for a file or folder of your own write ./path"
    )


def check_glob(value: str) -> str:
    """Check a pattern of paths."""
    check_text(value)
    if value.startswith(("-", "/")) or "\\" in value:
        raise ValueError(
            f"{shown(value)} is not a valid pattern: it must not begin with '-' or '/' or contain a backslash"
        )
    return value


def check_directory(value: str) -> str:
    """Check the folder that patches are applied in; empty means the root."""
    return value if value == "" else check_path(value)


# -- variables, requirements, versions ----------------------------------------------------------------


def check_variable(value: str) -> str:
    """Check the name of an environment variable that a manifest may set."""
    if not _matches(VARIABLE_PATTERN, value):
        raise ValueError(
            f"{shown(value)} is not a valid variable name: use letters, digits and '_', and no digit first"
        )
    if _CODE_VARIABLES.fullmatch(value):
        raise ValueError(f"{value} controls which code runs, so a manifest must not set it")
    return value


def check_requirement(value: str) -> str:
    """Check one requirement (PEP 508) without credentials."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(value)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{shown(value)} is not a requirement (PEP 508), such as ray==2.42.1: {reason}"
        ) from None
    if requirement.url and re.match(r"[^/]*//[^/@]*@", requirement.url):
        raise ValueError(
            f"{shown(value)} contains a user or password: put it into netrc or pip's configuration"
        )
    return value


def check_requirement_file(value: str) -> str:
    """Check the path of a file that declares requirements, with extras if they count: setup.py[math,vllm]."""
    path, extras = split_requirement_file(value)
    check_path(path)
    name = path.rpartition("/")[2]
    if name in ("setup.py", "pyproject.toml") or (name.endswith(".txt") and not extras):
        return value
    raise ValueError(
        f"{shown(value)} is not a file of requirements: use a .txt, or a pyproject.toml or setup.py, "
        "these with an extra if it counts (setup.py[EXTRA])"
    )


def split_requirement_file(value: str) -> tuple[str, tuple[str, ...]]:
    """Split the path of a file that declares requirements from its extras. Raises ValueError for another form."""
    match = re.fullmatch(r"([^\[\]]+)(?:\[([A-Za-z0-9._-]+(?:,[A-Za-z0-9._-]+)*)\])?", value)
    if match is None:
        raise ValueError(f"{shown(value)} is not a path, or a path with extras such as setup.py[vllm]")
    return match[1], tuple(match[2].split(",")) if match[2] else ()


def check_bound(value: str) -> str:
    """Check the version specifiers of a requirement, such as >=2.0.0 or >=0.8,<0.10."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        if len(SpecifierSet(value)):
            return value
    except InvalidSpecifier:
        pass
    raise ValueError(f"{shown(value)} is not a version bound (PEP 440), such as '>=2.0.0' or '>=0.8,<0.10'")


def check_pypi(value: str) -> str:
    """Check one release on a package index: name==version."""
    name, _, version = value.partition("==")
    try:
        check_distribution(name)
        check_version(version)
    except ValueError:
        raise ValueError(
            f"{shown(value)} is not one release: write name==version, such as vllm==0.9.1"
        ) from None
    return value


def check_version(value: str) -> str:
    """Check a version (PEP 440)."""
    from packaging.version import InvalidVersion, Version

    try:
        Version(value)
    except InvalidVersion:
        raise ValueError(f"{shown(value)} is not a version (PEP 440), such as 0.9.1 or 0.5.0.dev0") from None
    if value != value.strip():
        raise ValueError(f"{shown(value)} has spaces around the version")
    return value


def check_entry_name(value: str) -> str:
    """Check the name of an entry point: one line without '=', not beginning with '['."""
    check_text(value)
    if "=" in value or value.startswith("[") or value != value.strip():
        raise ValueError(
            f"{shown(value)} is not a valid entry-point name: no '=', no leading '[', no surrounding spaces"
        )
    return value


def check_extends(value: str) -> str:
    """Check the value of `extends:`: a bundled name, or a path relative to the file."""
    if is_manifest_path(value):
        return check_local_path(value)
    return check_name(value)


def is_manifest_path(value: str) -> bool:
    """Return whether the text is the path of a manifest, not the name of a bundled one."""
    return "/" in value or value.endswith((".yaml", ".yml"))


def split_address(value: str) -> tuple[str, int]:
    """Split HOST:PORT; an IPv6 host loses its brackets. Raises ValueError if it is invalid."""
    host, _, port = value.rpartition(":")
    if not re.fullmatch(ADDRESS_PATTERN, value) or not 1 <= int(port) <= 65535:
        raise ValueError(
            "must be HOST:PORT with a port from 1 to 65535, such as 10.0.0.1:6766 or [fd00::1]:6766"
        )
    if host.startswith("["):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError as error:
            raise ValueError(f"must have an IPv6 address in its brackets: {error}") from error
    return host, int(port)
