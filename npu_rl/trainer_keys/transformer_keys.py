"""The keys of `override_transformer_config`, which has two readers: Megatron-core's classes and MindSpeed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from npu_rl.config.suggest import alike, nearest
from npu_rl.trainer_code.source_files import is_source
from npu_rl.trainer_code.source_index import Field, Sources
from npu_rl.trainer_keys.mindspeed_arguments import MindSpeedArguments
from npu_rl.trainer_keys.resolution import Verdict, unknown
from npu_rl.trainer_keys.value_types import of_field

_MODULE = "megatron.core.transformer.transformer_config"
_CLASSES = ("TransformerConfig", "MLATransformerConfig")
_WORKERS = "verl/workers/megatron_workers.py"
_REPATCH = re.compile(rb"\brepatch\([^\n]*override_transformer_config")
_CONVERTER = "verl/models/mcore/config_converter.py"


@dataclass(frozen=True)
class Pair:
    """Two spellings of one thing where each is read by somebody, so that a recipe wants both."""

    one: str
    other: str
    source: str

    def beside(self, name: str) -> str | None:
        """The other spelling of `name`."""
        return {self.one: self.other, self.other: self.one}.get(name)


PAIRS = (
    Pair(
        "multi_latent_attention",
        "multi_head_latent_attention",
        "megatron/core/transformer/transformer_config.py@core_v0.12.1 knows the first; MindSpeed@7ff818c4 reads the "
        "second (mindspeed/core/transformer/attention.py:141) and the first (mindspeed/core/fusions/fused_rope.py:121)",
    ),
)


class TransformerKeys:
    """Both readers of a code folder."""

    def __init__(self, code: Path, sources: Sources) -> None:
        self._code = code
        self._sources = sources
        self.mindspeed = MindSpeedArguments(sources)

    @property
    def classes(self) -> tuple[str, ...]:
        """Megatron-core's configuration classes, dotted."""
        return tuple(f"{_MODULE}.{name}" for name in _CLASSES)

    def look(self, section: str, name: str, given: Collection[str]) -> Verdict:
        """Who reads `section.name`. given: all keys that are set."""
        if not self.core and not self.mindspeed.present:
            return Verdict(True, unchecked="Megatron-core (there is no megatron/core in the code)")
        field, argument = self.core.get(name), self.mindspeed.get(name)
        read = argument.where if argument else self.mindspeed.read_at(name)
        if field is None and read is None:
            readers = (
                "neither Megatron-core nor MindSpeed knows"
                if self.mindspeed.present
                else "Megatron-core has no"
            )
            near = nearest(name, {*self.core, *self.mindspeed.declared})
            return unknown(f"{readers} {name}", near and f"{section}.{near}")
        said = self._told(section, name, field, read, given)
        kinds = (
            of_field(field, self._sources) if field else argument.kinds if argument else Verdict(True).kinds
        )
        return Verdict(True, "; ".join(said), kinds, field.where if field else read)

    @cached_property
    def core(self) -> Mapping[str, Field]:
        """The fields of Megatron-core's configuration classes; empty without Megatron-core."""
        return {k: v for fields in reversed(self._fields) for k, v in fields.items()}

    @cached_property
    def _fields(self) -> tuple[Mapping[str, Field], Mapping[str, Field]]:
        plain, latent = (self._sources.fields(f"{_MODULE}.{name}") or {} for name in _CLASSES)
        return plain, latent

    def _told(
        self, section: str, name: str, field: Field | None, read: str | None, given: Collection[str]
    ) -> list[str]:
        said = []
        if field is None and self.core and not self._handed_on:
            said.append(f"only MindSpeed reads {name} ({read}), Megatron-core doesn't: {self._dropped}")
        elif field is not None and name not in self._fields[0] and self._latent_dropped:
            said.append(
                f"only MLATransformerConfig has {name}, and {_CONVERTER} drops what TransformerConfig lacks"
            )
        other = self._other_spelling(name, field is not None, read is not None)
        if other and f"{section}.{other}" not in given:
            said.append(f"{self._who(other)}; set both if both are meant")
        return said

    def _other_spelling(self, name: str, core: bool, mindspeed: bool) -> str | None:
        """Another name for it that a reader in this tree wants."""
        for pair in PAIRS:
            other = pair.beside(name)
            if other and self.mindspeed.present and (other in self.core or self._in_mindspeed(other)):
                return other
        others: Collection[str] = ()
        if mindspeed and not core:
            others = [key for key in self.core if key not in self.mindspeed.declared]
        elif core and not mindspeed and self.mindspeed.present:
            others = [key for key in self.mindspeed.declared if key not in self.core]
        return next((key for key in sorted(others) if alike(key, name)), None)

    def _in_mindspeed(self, name: str) -> str | None:
        argument = self.mindspeed.get(name)
        return argument.where if argument else self.mindspeed.read_at(name)

    def _who(self, name: str) -> str:
        field, read = self.core.get(name), self._in_mindspeed(name)
        readers = [f"Megatron-core ({field.where})"] if field else []
        readers += [f"MindSpeed ({read})"] if read else []
        return f"{' and '.join(readers)} {'read' if len(readers) > 1 else 'reads'} {name}"

    @cached_property
    def _dropped(self) -> str:
        if "will be removed" in self._converter:
            return f"{_CONVERTER} drops it with a warning"
        return "see that the trainer takes it out before it builds Megatron-core's configuration"

    @cached_property
    def _handed_on(self) -> bool:
        """verl gives the whole mapping to MindSpeed before it builds a model, and Megatron-core only what it knows."""
        path = self._code / _WORKERS
        text = path.read_bytes() if is_source(path) else b""
        return "will be removed" in self._converter and _REPATCH.search(text) is not None

    @cached_property
    def _latent_dropped(self) -> bool:
        """verl 0.5.0 asks TransformerConfig, not the class it builds, which keys there are."""
        return "hasattr(TransformerConfig, key)" in self._converter

    @cached_property
    def _converter(self) -> str:
        path = self._code / _CONVERTER
        return path.read_text(encoding="utf-8", errors="replace") if is_source(path) else ""
