"""The names that can be set below the sections that a trainer leaves open, such as `engine_kwargs.vllm`.

The trainer passes such a section on, so its names are those of the packages that read it: fields of dataclasses,
arguments of a parser, names in the text of files. Nothing is followed through functions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from npu_rl.recipes.trainer_code.source_index import Class, SourceField, SourceIndex

_CORE = "megatron.core"
_TRANSFORMER = f"{_CORE}.transformer.transformer_config"
_CLASSES = {
    "override_transformer_config": (
        f"{_TRANSFORMER}.TransformerConfig",
        f"{_TRANSFORMER}.MLATransformerConfig",
    ),
    "override_ddp_config": (
        f"{_CORE}.distributed.distributed_data_parallel_config.DistributedDataParallelConfig",
    ),
    "override_optimizer_config": (f"{_CORE}.optimizer.optimizer_config.OptimizerConfig",),
    "vllm": ("vllm.engine.arg_utils.EngineArgs", "vllm.engine.arg_utils.AsyncEngineArgs"),
}
_ADDITIONAL = "additional_config"
# what MindSpeed declares, and what it reads of its arguments: `repatch` sets every key of the section on them
# (mindspeed/megatron_adaptor.py@7ff818c4)
_ARGUMENTS = (  # one by one, as an alternation of them takes four times as long
    re.compile(rb"""["']--([a-z][\w-]*)["']"""),
    re.compile(rb"""dest=["'](\w+)["']"""),
    re.compile(rb"""args(?:\(\))?\.([a-z]\w*)\b(?!\s*\()"""),
    re.compile(rb"""config\.([a-z]\w*)\b(?!\s*\()"""),
    re.compile(rb"""attr\(\s*[\w.]*(?:args|config),\s*["'](\w+)["']"""),
)
_NAME = re.compile(rb"""["']([A-Za-z_]\w*)["']""")


@dataclass(frozen=True)
class Names:
    """The names that a section takes.

    Attributes:
        reader: The package or class that reads the section.
        names: None if the code doesn't have it, so that nothing can be said.
    """

    reader: str
    names: Collection[str] | None


class OpenSections:
    """The readers of open sections in one code folder."""

    def __init__(self, sources: SourceIndex) -> None:
        self._sources = sources

    def names_in(self, section: str) -> Names | None:
        """Return the names that an open section takes; None if no library is known to read it."""
        parts = section.split(".")
        if _ADDITIONAL in parts:
            return self._ascend
        for index, part in enumerate(parts):
            if part not in _CLASSES or (part == "vllm" and parts[index - 1] != "engine_kwargs"):
                continue
            return self._class_names(part, parts[index + 1 :])
        return Names("transformers", None) if section.endswith("model.override_config") else None

    def _class_names(self, part: str, inner: list[str]) -> Names | None:
        classes = [found for dotted in _CLASSES[part] if (found := self._sources.find_class(dotted))]
        reader = _CLASSES[part][0].rpartition(".")[2]
        if not classes:
            return Names(f"{reader}, which is not in the code,", None)
        fields: dict[str, SourceField] = {}
        for one in classes:
            fields |= self._sources.fields_of_class(*one)
        for name in inner:
            below = self.class_of(fields[name]) if name in fields else None
            fields = self._sources.fields_of_class(*below) if below else {}
            if not fields or below is None:
                return Names(f"{reader}.{name}", None)
            reader = below[1].name
        more = self._mindspeed if part == "override_transformer_config" else frozenset()
        return Names(f"{reader} or MindSpeed" if more else reader, {*fields, *more})

    def class_of(self, field: SourceField) -> Class | None:
        """Return the configuration class in a field's annotation, or None."""
        for node in ast.walk(field.annotation) if field.annotation else ():
            if isinstance(node, ast.expr) and (
                found := self._sources.find_class_expression(field.module, node)
            ):
                return found
        return None

    @cached_property
    def _mindspeed(self) -> frozenset[str]:
        texts = self._sources.texts("mindspeed").values()
        found = (name for text in texts for argument in _ARGUMENTS for name in argument.findall(text))
        return frozenset(name.decode().replace("-", "_") for name in found)

    @cached_property
    def _ascend(self) -> Names:
        """The string literals of vllm-ascend's files that read `additional_config`."""
        texts = [text for text in self._sources.texts("vllm_ascend").values() if _ADDITIONAL.encode() in text]
        if not texts:
            return Names("vllm-ascend, which is not in the code,", None)
        return Names(
            "vllm-ascend", frozenset(name.decode() for text in texts for name in _NAME.findall(text))
        )
