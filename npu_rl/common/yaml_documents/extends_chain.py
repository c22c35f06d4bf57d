"""The chain of `extends:`: a manifest or recipe and each file that it extends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bundled import data_root
from npu_rl.common.yaml_documents import text_checks
from npu_rl.common.yaml_documents.document import Document, Plain
from npu_rl.common.yaml_documents.document_kind import DocumentKind, find_bundled
from npu_rl.common.yaml_documents.file_digests import BUNDLED, read_bounded, sha256
from npu_rl.common.yaml_documents.problems import Problem, shown
from npu_rl.common.yaml_documents.yaml_reader import read_yaml

PARENT_LIMIT = 8


@dataclass(frozen=True)
class _FileRequest:
    """A file to read.

    Attributes:
        shown_as: Its name in messages.
        where: The file and line that name it, or the name itself.
    """

    path: Path
    bundled: bool
    shown_as: str
    where: str


@dataclass(frozen=True)
class ChainFile:
    """One file of the chain.

    Attributes:
        path: Absolute path.
        digest: SHA-256 of its bytes.
    """

    path: Path
    bundled: bool
    digest: str
    document: Document
    extends: str | None


def read_chain(kind: DocumentKind, name_or_path: str) -> list[ChainFile]:
    """Read a file and its parents, the named file first, the oldest ancestor last.

    Raises the kind's error if a file is missing or malformed, there are more than 8 parents, or they form a cycle.
    """
    chain: list[ChainFile] = []
    request: _FileRequest | None = _first(kind, name_or_path)
    while request is not None:
        file = _read(kind, request)
        chain.append(file)
        request = _parent(kind, chain)
    return chain


def _first(kind: DocumentKind, name_or_path: str) -> _FileRequest:
    if text_checks.is_manifest_path(name_or_path):
        return _FileRequest(Path(name_or_path), False, name_or_path, name_or_path)
    return _bundled(kind, name_or_path)


def _bundled(kind: DocumentKind, name: str, where: str | None = None) -> _FileRequest:
    shown_as = f"{BUNDLED}{name}.yaml"
    return _FileRequest(find_bundled(kind, name, where), True, shown_as, where or shown_as)


def _read(kind: DocumentKind, request: _FileRequest) -> ChainFile:
    try:
        # Links in the folder are followed so that '..' means the same to us and to the file system.
        path = request.path.parent.resolve() / request.path.name
        raw = read_bounded(path)
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        what = f"The {kind.noun} {shown(request.shown_as)} can't be read"
        raise kind.error(what, where=request.where, why=reason, hint="Check the path.") from error
    document = read_yaml(raw, request.shown_as, kind)
    return ChainFile(path, request.bundled, sha256(raw), document, _extends(kind, document))


def _extends(kind: DocumentKind, document: Document) -> str | None:
    value: Plain = document.data.get("extends")
    if value is None:
        return None
    try:
        if not isinstance(value, str):
            raise ValueError("must be text: the name of a bundled file or a relative path")
        return text_checks.check_extends(value)
    except ValueError as error:
        problem = Problem(document.name, document.lines[("extends",)], ("extends",), str(error))
        raise kind.invalid(document.name, [problem]) from None


def _parent(kind: DocumentKind, chain: list[ChainFile]) -> _FileRequest | None:
    child = chain[-1]
    if child.extends is None:
        return None
    where = f"{child.document.name}:{child.document.lines[('extends',)]}"
    if text_checks.is_manifest_path(child.extends):
        if child.bundled:
            raise kind.error(
                f"The bundled {kind.noun} {child.document.name} extends a path",
                where=where,
                why=f"A bundled {kind.noun} can only extend another bundled {kind.noun}, by name.",
            )
        path = child.path.parent / child.extends
        shown_path = os.path.normpath(Path(child.document.name).parent / child.extends)
        request = _FileRequest(path, False, shown_path, where)
    else:
        request = _bundled(kind, child.extends, where)
    _check_length(kind, chain, request.path, where)
    return request


def _check_length(kind: DocumentKind, chain: list[ChainFile], parent: Path, where: str) -> None:
    names = [file.document.name for file in chain]
    if os.path.realpath(parent) in {os.path.realpath(file.path) for file in chain}:
        raise kind.error(
            f"{names[0]} extends itself",
            where=where,
            why=f"{' -> '.join(names)} -> {parent.name} is a cycle",
            hint="Remove one `extends:` line.",
        )
    if len(chain) > PARENT_LIMIT:
        raise kind.error(
            f"{names[0]} has more than {PARENT_LIMIT} levels of `extends:`",
            where=where,
            why=" -> ".join(names),
            hint="Merge some of these files into one parent.",
        )


def recorded_names(kind: DocumentKind, chain: list[ChainFile]) -> Iterator[tuple[str, str]]:
    """Yield the portable name (relative to the first file's folder, or bundled:NAME.yaml) and SHA-256 of each file."""
    folder = chain[0].path.parent
    shipped = os.path.realpath(data_root() / kind.folder)
    for file in chain:
        # A bundled file has one name, whether it was requested by name or by path.
        if file.bundled or os.path.realpath(file.path.parent) == shipped:
            yield f"{BUNDLED}{file.path.name}", file.digest
        else:
            yield Path(os.path.relpath(file.path, folder)).as_posix(), file.digest
