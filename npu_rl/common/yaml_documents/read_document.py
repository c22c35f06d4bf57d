"""Reading of one YAML file into a document, parsed now or cached by an earlier command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from npu_rl.common.yaml_documents import reading_cache
from npu_rl.common.yaml_documents.document import Document, Plain
from npu_rl.common.yaml_documents.document_kind import DocumentKind
from npu_rl.common.yaml_documents.file_digests import sha256
from npu_rl.common.yaml_documents.problems import KeyPath
from npu_rl.common.yaml_documents.quoted_text import Quoted


def read_document(raw: bytes, name: str, kind: DocumentKind, bundled: bool) -> Document:
    """Read one YAML mapping.

    A bundled recipe is parsed once: importing PyYAML and parsing the flagship's recipe takes 30 ms. Other files are not
    cached, since they may hold secrets.

    Raises:
        NpuRlError: The kind's error, with file and line, for anything else.
    """
    key, keeps = sha256(raw), bundled and kind.kept
    if keeps and (kept := _from_json(name, reading_cache.recall("document", key))):
        return kept
    from npu_rl.common.yaml_documents.yaml_reader import read_yaml

    document = read_yaml(raw, name, kind)
    if keeps:
        reading_cache.keep("document", key, _to_json(document))
    return document


def _to_json(document: Document) -> Any:
    lines = [[list(path), line] for path, line in document.lines.items()]
    null_words = [list(path) for path in document.null_words]
    quoted = list(_quoted(document.data, ()))
    return {"data": document.data, "lines": lines, "quoted": quoted, "null_words": null_words}


def _quoted(value: Plain, path: KeyPath) -> Iterator[list[str | int]]:
    """Yield the paths of quoted values, a difference that JSON does not keep."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _quoted(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _quoted(item, (*path, index))
    elif isinstance(value, Quoted):
        yield list(path)


def _from_json(name: str, kept: Any) -> Document | None:
    try:
        for *above, last in kept["quoted"]:
            holder = kept["data"]
            for part in above:
                holder = holder[part]
            holder[last] = Quoted(holder[last])
        lines = {tuple(path): line for path, line in kept["lines"]}
        return Document(name, kept["data"], lines, frozenset(map(tuple, kept["null_words"])))
    except (TypeError, KeyError, IndexError, ValueError):
        return None  # nothing is kept, or it is damaged
