"""Merging a chain of files into one tree of values, and validating that tree as a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from npu_rl.common.yaml_documents.document import Document
from npu_rl.common.yaml_documents.document_kind import DocumentKind
from npu_rl.common.yaml_documents.extends_chain import ChainFile
from npu_rl.common.yaml_documents.layers import Layer, Lists, Node, overlay
from npu_rl.common.yaml_documents.problems import Problem
from npu_rl.common.yaml_documents.validation_errors import Suggest, explain, no_suggestion

Rebase = Callable[[Document, "Path | None", Path], "list[Problem]"]
Model = TypeVar("Model", bound=BaseModel)


def merge(
    chain: Sequence[ChainFile], rebase: Rebase, problems: list[Problem], lists: Lists | None = None
) -> Node:
    """Merge each file over its parent; errors are added to `problems`.

    Args:
        rebase: Makes a document's paths relative to another folder (None: the document is bundled).
        lists: As `overlay` takes it.
    """
    root: Node | None = None
    folder = chain[0].path.parent
    for file in reversed(chain):
        problems.extend(rebase(file.document, None if file.bundled else file.path.parent, folder))
        if file is not chain[0] and file.extends is not None:
            # A parent's own `extends` has been followed; the child does not inherit it.
            file.document.data.pop("extends", None)
        root = overlay(root, file.document, problems, lists=lists)
    assert root is not None
    return root


def checked(
    model: type[Model],
    layer: Layer,
    problems: Sequence[Problem],
    kind: DocumentKind,
    order: Sequence[str],
    suggest: Suggest = no_suggestion,
) -> Model:
    """Validate the merged data as a model.

    Raises the kind's `invalid` with `problems` and all errors of the model.

    Args:
        order: Names of the files, the requested one first; errors are sorted by it.
        suggest: Finds replacements of unknown keys.
    """
    found = list(problems)
    try:
        result = model.model_validate(layer.data)
    except ValidationError as error:
        found.extend(explain(error, model, layer, {problem.path for problem in problems}, order, suggest))
    if found:
        rank = {name: index for index, name in enumerate(order)}
        found.sort(key=lambda problem: (rank[problem.file], problem.line))
        raise kind.invalid(order[0], list(dict.fromkeys(found)))
    return result
