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

_CONFIGURATION = "setup.cfg"
LARGEST = 256 * 1024  # bytes of a file; transformers' setup.py has 20 kB
_MOST_FILES = 100  # of a component
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
        "setup.py",
        "pyproject.toml",
        _CONFIGURATION,
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
    pending: dict[str, tuple[str, ...]] = {}
    for path, extras in map(split_requirement_file, named or ()):
        pending[path] = (*pending.get(path, ()), *extras)
    if named is None:
        pending = {posixpath.normpath(f"{p}/{file}"): () for p in projects for file in counted_files(device)}
    first, seen = pending, set(pending)
    while pending:
        contents = read(tuple(pending))
        included: dict[str, tuple[str, ...]] = {}
        for path, extras in pending.items():
            if path in contents:
                included |= dict.fromkeys(_read_one(declared, path, contents[path], extras), ())
            elif path not in first:
                declared.unread.append(f"{path}: not found")
            elif named is not None:
                declared.missing.append(path)
        pending = {path: () for path in included if path not in seen}
        seen |= pending.keys()
        if len(seen) > len(first) + _MOST_FILES:
            declared.unread.append(f"more than {_MOST_FILES} files are named")
            break
    if len(declared.unread) > _MOST_UNREAD:
        declared.unread[_MOST_UNREAD:] = [f"and {len(declared.unread) - _MOST_UNREAD} more"]
    return declared


def _read_one(declared: Declared, path: str, content: bytes | None, extras: Sequence[str]) -> Iterator[str]:
    """Add the requirements of one file; yield the paths of the files that it includes."""
    name = path.rpartition("/")[2]
    if content is None or len(content) > LARGEST:
        readings: Mapping[str, Reading] = {"": Reading(unread=(f"larger than {LARGEST} bytes",))}
    else:
        readings = _readings(name, content, extras)
    for extra, reading in readings.items():
        if name != _CONFIGURATION:
            declared.files[f"{path}[{extra}]" if extra else path] = reading.bounds
        declared.unread += [f"{path}: {_printable(reason)}" for reason in reading.unread]
        for include in reading.includes:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), include))
            outside = "://" in include or "\\" in include or target.startswith(("/", ".."))
            if outside or not include.isprintable():
                declared.unread.append(f"{path}: a file outside of the repository")
            else:
                yield target


def _readings(name: str, content: bytes, extras: Sequence[str]) -> Mapping[str, Reading]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return {"": Reading(unread=("not UTF-8",))}
    if name == "setup.py":
        return read_setup_script(text, extras)
    if name == "pyproject.toml":
        return read_project_table(text, extras)
    if name == _CONFIGURATION:
        unread = ("install_requires is not read",) if "install_requires" in text else ()
        return {"": Reading(unread=unread)}
    return {"": read_requirement_file(text)}


def _printable(reason: str) -> str:
    """Return a reason as printable text for a lock, since a build backend may have any name."""
    return "".join(character if character.isprintable() else "?" for character in reason)
