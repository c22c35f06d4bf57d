"""The files of a component that declare its runtime requirements, and these requirements.

The files are those that an installation for the manifest's device reads at run time. Files of other devices, of tests,
documentation, builds and lint, and extras that the manifest does not name, do not count.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from npu_rl.common.yaml_documents.text_checks import split_requirement_file
from npu_rl.stack.requirements.project_table import read_project_table
from npu_rl.stack.requirements.reading import Reading
from npu_rl.stack.requirements.requirement_file import read_requirement_file
from npu_rl.stack.requirements.setup_script import read_setup_script

SCRIPT, TABLE, CONFIGURATION = "setup.py", "pyproject.toml", "setup.cfg"
LARGEST = 256 * 1024  # bytes of a file; transformers' setup.py has 20 kB
_LARGEST_SUM = 1 << 20  # bytes of all files of a component
_MOST_NAMED = 64  # files that others name
_MOST_BOUNDS = 1000  # of a file
_MOST_UNREAD = 20  # of a component

ReadFiles = Callable[[Sequence[str]], Mapping[str, bytes | None]]
"""Returns the content of those files of some paths that exist; None for one that is larger than LARGEST."""


@dataclass
class Declared:
    """The requirements that a component declares.

    Attributes:
        files: The bounds of each file that was read. Bounds of an extra are under setup.py[EXTRA].
        unread: Requirements that could not be read, each with its file.
        missing: Files that the manifest names and the component does not have.
    """

    files: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def counted_files(device: str) -> tuple[str, ...]:
    """Return the paths of the files that count in a project, including those for the device."""
    return (
        "requirements.txt",
        f"requirements-{device}.txt",
        "requirements-common.txt",  # vLLM up to 0.7
        "requirements/common.txt",
        f"requirements/{device}.txt",
        SCRIPT,
        TABLE,
        CONFIGURATION,
    )


def declared_requirements(
    read: ReadFiles, projects: Sequence[str], device: str, named: Sequence[str] | None
) -> Declared:
    """Return the requirements that a component declares.

    Args:
        read: Reads files of the component.
        projects: The folders of its projects: "." and those of its submodules.
        device: The manifest's device.
        named: The entries of `requirements_from`; None for the default files.
    """
    declared = Declared()
    wanted: dict[str, tuple[str, ...]]
    if named is not None:
        wanted = dict.fromkeys((path for path, _ in map(split_requirement_file, named)), ())
        for path, extras in map(split_requirement_file, named):
            wanted[path] += extras
    else:
        wanted = {posixpath.normpath(f"{p}/{file}"): () for p in projects for file in counted_files(device)}
    pending = dict(wanted)
    seen = set(wanted)
    left = _LARGEST_SUM
    while pending:
        contents = read(tuple(pending))
        found: dict[str, tuple[str, ...]] = {}
        for path, extras in pending.items():
            if path not in contents:
                if named is not None and path in wanted:
                    declared.missing.append(path)
                elif path not in wanted:
                    declared.unread.append(f"{path}: not found")
                continue
            left -= len(contents[path] or b"")
            if left < 0:
                declared.unread.append(f"{path}: more than {_LARGEST_SUM} bytes with the files before it")
                continue
            for include in _read_one(declared, path, contents[path], extras):
                if include in seen:
                    continue
                if len(seen) == len(wanted) + _MOST_NAMED:
                    declared.unread.append(f"{path}: more than {_MOST_NAMED} files are named")
                    break
                seen.add(include)
                found[include] = ()
        pending = found
    if len(declared.unread) > _MOST_UNREAD:
        more = len(declared.unread) - _MOST_UNREAD
        declared.unread[_MOST_UNREAD:] = [f"and {more} more"]
    return declared


def _read_one(declared: Declared, path: str, content: bytes | None, extras: Sequence[str]) -> Iterator[str]:
    """Add the requirements of one file; yield the paths of the files that it includes."""
    name = path.rpartition("/")[2]
    try:
        readings = _readings(name, _text(content), extras)
    except ValueError as error:
        readings = {"": Reading(unread=(str(error),))}
    for extra, reading in readings.items():
        if name != CONFIGURATION:
            declared.files[f"{path}[{extra}]" if extra else path] = reading.bounds
        declared.unread += [f"{path}: {_printable(reason)}" for reason in reading.unread]
        for include in reading.includes:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), include))
            outside = "://" in include or "\\" in include or target.startswith(("/", ".."))
            if outside or not include.isprintable():
                declared.unread.append(f"{path}: a file outside of the repository")
            else:
                yield target


def _readings(name: str, text: str, extras: Sequence[str]) -> Mapping[str, Reading]:
    if name == SCRIPT:
        readings = read_setup_script(text, extras)
    elif name == TABLE:
        readings = read_project_table(text, extras)
    elif name == CONFIGURATION:
        found = "install_requires" in text
        readings = {"": Reading(unread=("install_requires is not read",) if found else ())}
    else:
        readings = {"": read_requirement_file(text)}
    if sum(len(one.bounds) for one in readings.values()) > _MOST_BOUNDS:
        raise ValueError(f"more than {_MOST_BOUNDS} bounds")
    return readings


def _printable(reason: str) -> str:
    """Return a reason as printable text for a lock, since a build backend may have any name."""
    return "".join(character if character.isprintable() else "?" for character in reason)


def _text(content: bytes | None) -> str:
    if content is None or len(content) > LARGEST:
        raise ValueError(f"larger than {LARGEST} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
