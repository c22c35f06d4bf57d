"""Checks of single values: names, refs, paths, requirements.

Each check returns its text, or raises ValueError with what is wrong and what to write. No check imports pydantic or
yaml, so that modules on the start-up path can use them.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata

from npu_rl.common.portable_names import MAXIMUM_DEPTH, invalid_name_reason, is_dot_git
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

_NAME_LIMIT = 100
_RELATIVE = "write a relative path with '/' as the separator"
# Variables that control which code runs or which files the tools read: only npu-rl sets them.
_CODE_VARIABLES = re.compile(
    r"PATH|HOME|IFS|ENV|BASH_ENV|SHELLOPTS|BASHOPTS|LD_AUDIT|GIT_.*"
    r"|PYTHON(PATH|HOME|STARTUP|USERBASE|PYCACHEPREFIX|EXECUTABLE|PLATLIBDIR|BREAKPOINT|INSPECT)"
)


def _matches(pattern: str, value: str) -> bool:
    return re.fullmatch(pattern[1:-1], value) is not None


def _matching(pattern: str, value: str, otherwise: str) -> str:
    """Return the value, or raise ValueError with the value and what is wrong with it."""
    if not _matches(pattern, value):
        raise ValueError(f"{shown(value)} {otherwise}")
    return value


def check_text(value: str) -> str:
    """Check one line of text that is not empty."""
    if not value.strip():
        raise ValueError("must not be empty")
    if _unprintable(value):
        raise ValueError("must be one line without control characters")
    return value


def check_name(value: str) -> str:
    """Check the name of a manifest or component, which becomes part of file names and refs."""
    if not _matches(NAME_PATTERN, value) or len(value) > _NAME_LIMIT:
        raise ValueError(
            f"{shown(value)} is not a valid name: begin with a letter or digit,"
            f" then letters, digits, '.', '_' or '-', at most {_NAME_LIMIT} characters"
        )
    if ".." in value or value.endswith((".", ".lock")):
        raise ValueError(
            f"{shown(value)} is not a valid name: it must not contain '..' or end in '.' or '.lock'"
        )
    return value


def check_full_ref(value: str) -> str:
    """Check a full commit id (40 lower-case hex digits) or a full ref name (refs/...), by git's own rules."""
    if _matches(PIN_PATTERN, value):
        return value
    if value.startswith("refs/"):
        return _check_ref_format(value)
    if _matches(r"^[0-9A-Fa-f]{40}$", value):
        raise ValueError(f"write the commit id in lower case: {value.lower()}")
    if _matches(r"^[0-9A-Fa-f]{4,39}$", value):
        raise ValueError(
            f"{shown(value)} is a short commit id, which can become ambiguous as the repository grows:"
            " write all 40 digits (git rev-parse prints them)"
        )
    _check_ref_format(f"refs/heads/{value}")
    raise ValueError(_short_ref(value))


def check_sha256(value: str) -> str:
    """Return a SHA-256 digest in lower case hexadecimal; ValueError for any other text."""
    if not _matches(SHA256_PATTERN, value):
        raise ValueError(
            "must be a SHA-256 digest, 64 lower case hexadecimal digits: sha256sum FILE prints it"
        )
    return value


def check_pin(value: str) -> str:
    """Check a full commit id: 40 lower-case hex digits."""
    return _matching(PIN_PATTERN, value, "is not a full commit id: write its 40 lower-case hex digits")


def _short_ref(value: str) -> str:
    why = f"{shown(value)} is a short ref name, which a branch and a tag can share"
    if value.startswith(("heads/", "tags/", "remotes/", "pull/")):
        return f"{why}: write refs/{value}"
    bare = value.removeprefix("origin/")
    return f"{why}: write refs/tags/{bare} or refs/heads/{bare}, or the full commit id"


def _check_ref_format(ref: str) -> str:
    """Check the rules of `git check-ref-format`, and that no component begins with '-'."""
    forbidden = re.search(r"[\x00-\x20\x7f~^:?*\[\\]", ref)
    if forbidden:
        raise ValueError(
            f"a ref must not contain {shown(forbidden.group())}: write a full commit id or refs/..."
        )
    if ".." in ref or "@{" in ref:
        raise ValueError("a ref must not contain '..' or '@{': write one full commit id or refs/...")
    for part in ref.split("/"):
        if not part:
            raise ValueError(
                "a ref must not have an empty component: remove the '//', or the '/' at its start or end"
            )
        if part.startswith((".", "-")) or part.endswith(".lock"):
            raise ValueError("no component of a ref may begin with '.' or '-', or end with '.lock'")
    if ref.endswith("."):
        raise ValueError("a ref must not end with '.'")
    return ref


def check_path(value: str) -> str:
    """Check a relative POSIX path that stays inside its folder and has no `.git` component."""
    if not value:
        raise ValueError("a path must not be empty; '.' means the root")
    if value == ".":
        return value
    if value.startswith(("/", "~")):
        raise ValueError(f"{shown(value)} is absolute: {_RELATIVE}")
    if value.startswith("-"):
        raise ValueError(f"{shown(value)} begins with '-', so git would read it as an option")
    if "\\" in value:
        raise ValueError(f"{shown(value)} contains a backslash: {_RELATIVE}")
    if _unprintable(value):
        raise ValueError(f"{shown(value)} contains a control or invisible character")
    for segment in value.split("/"):
        _check_segment(value, segment)
    if value.count("/") > MAXIMUM_DEPTH:
        raise ValueError(f"{shown(value)} is more than {MAXIMUM_DEPTH} folders deep")
    return value


def _check_segment(path: str, segment: str) -> None:
    if not segment:
        raise ValueError(f"{shown(path)} has an empty component: remove the '//', or the '/' at its end")
    if segment in (".", ".."):
        raise ValueError(f"{shown(path)} contains {segment!r}: write the path without it")
    if is_dot_git(segment):
        raise ValueError(f"{shown(path)} is inside git's own folder")
    if why := invalid_name_reason(segment):
        raise ValueError(f"{shown(path)}: {why}")


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


def check_distribution(value: str) -> str:
    """Check the name of a distribution on a package index."""
    what = "is not a valid distribution name: use letters, digits, '.', '_' or '-'"
    return _matching(DISTRIBUTION_PATTERN, value, what)


def check_group(value: str) -> str:
    """Check the name of an entry-point group."""
    return _matching(GROUP_PATTERN, value, "is not an entry-point group, such as vllm.platform_plugins")


def check_entry_name(value: str) -> str:
    """Check the name of an entry point: one line without '=', not beginning with '['."""
    check_text(value)
    if "=" in value or value.startswith("[") or value != value.strip():
        raise ValueError(
            f"{shown(value)} is not a valid entry-point name: no '=', no leading '[', no surrounding spaces"
        )
    return value


def check_object(value: str) -> str:
    """Check the object of an entry point: module:attribute."""
    return _matching(OBJECT_PATTERN, value, "is not module:attribute, such as vllm_ascend:register")


def check_extends(value: str) -> str:
    """Check the value of `extends:`: a bundled name, or a path relative to the file."""
    if is_manifest_path(value):
        return check_local_path(value)
    return check_name(value)


def is_manifest_path(value: str) -> bool:
    """Return whether the text is the path of a manifest, not the name of a bundled one."""
    return "/" in value or value.endswith((".yaml", ".yml"))


def _unprintable(value: str) -> bool:
    return any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in value)


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
