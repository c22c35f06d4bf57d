"""The keys of `override_transformer_config`, which Megatron-core's classes and MindSpeed read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from npu_rl.common.yaml_documents.suggest import alike, nearest
from npu_rl.recipes.trainer_code.bridged_actor import ONLY_BRIDGES
from npu_rl.recipes.trainer_code.source_files import read_source, read_source_text
from npu_rl.recipes.trainer_code.source_index import SourceField, SourceIndex
from npu_rl.recipes.trainer_code.value_types import ANY, field_type
from npu_rl.recipes.trainer_keys.mindspeed_arguments import MindSpeedArguments
from npu_rl.recipes.trainer_keys.resolution import KeyResolution, unknown

_MODULE = "megatron.core.transformer.transformer_config"
_CLASSES = ("TransformerConfig", "MLATransformerConfig")
_WORKERS = "verl/workers/megatron_workers.py"
_REPATCH = re.compile(rb"\brepatch(?:\(|_config = )[^\n]{0,500}override_transformer_config")
_ENGINE = "verl/workers/engine/mindspeed/transformer_impl.py"
_CONVERTER = "verl/models/mcore/config_converter.py"


@dataclass(frozen=True)
class SpellingPair:
    """Two names of one setting that are read by different code, so that a recipe must set both.

    Attributes:
        one: The name that is enough where a bridge builds the model.
        source: The code that reads them.
    """

    one: str
    other: str
    source: str

    def other_spelling(self, name: str) -> str | None:
        """Return the other name of `name`, or None."""
        return {self.one: self.other, self.other: self.one}.get(name)


SPELLING_PAIRS = (
    SpellingPair(
        "multi_latent_attention",
        "multi_head_latent_attention",
        "megatron/core/transformer/transformer_config.py@core_v0.12.1 knows the first; MindSpeed@7ff818c4 reads the "
        "second (mindspeed/core/transformer/attention.py:141) and the first (mindspeed/core/fusions/fused_rope.py:121)",
    ),
)


class TransformerKeys:
    """The keys that Megatron-core and MindSpeed read in one code folder."""

    def __init__(self, code: Path, sources: SourceIndex) -> None:
        self._code = code
        self._sources = sources
        self.mindspeed = MindSpeedArguments(sources)

    @property
    def classes(self) -> tuple[str, ...]:
        """Megatron-core's configuration classes, dotted."""
        return tuple(f"{_MODULE}.{name}" for name in _CLASSES)

    def resolve(self, section: str, name: str, given: Collection[str]) -> KeyResolution:
        """Resolve `section.name`.

        Args:
            given: All keys that are set.
        """
        if not self.core and not self.mindspeed.present:
            return KeyResolution(True, unchecked="Megatron-core (the code has no megatron/core)")
        field, argument, read = self.core.get(name), self.mindspeed.get(name), self._in_mindspeed(name)
        if field is None and read is None:
            both = self.mindspeed.present
            readers = "neither Megatron-core nor MindSpeed knows" if both else "Megatron-core has no"
            near = nearest(name, {*self.core, *self.mindspeed.declared})
            return unknown(f"{readers} {name}", near and f"{section}.{near}")
        messages = self._messages(section, name, field, read, given)
        expected = argument.expected if argument else ANY
        if field:
            expected = field_type(field, self._sources)
        return KeyResolution(True, "; ".join(messages), expected, field.where if field else read)

    @cached_property
    def core(self) -> Mapping[str, SourceField]:
        """The fields of Megatron-core's configuration classes; empty without Megatron-core."""
        return {k: v for fields in reversed(self._fields) for k, v in fields.items()}

    @cached_property
    def _fields(self) -> tuple[Mapping[str, SourceField], Mapping[str, SourceField]]:
        plain, latent = (self._sources.fields(f"{_MODULE}.{name}") or {} for name in _CLASSES)
        return plain, latent

    def _messages(
        self, section: str, name: str, field: SourceField | None, read: str | None, given: Collection[str]
    ) -> list[str]:
        messages = []
        if field is None and self.core and not self._passes_whole_mapping:
            messages.append(f"only MindSpeed reads {name} ({read}), Megatron-core doesn't: {self._drop_note}")
        elif field is not None and name not in self._fields[0] and self._drops_latent_fields:
            dropped = f"{_CONVERTER} drops what TransformerConfig lacks"
            messages.append(f"only MLATransformerConfig has {name}, and {dropped}")
        other = self._other_spelling(name, field is not None, read is not None)
        if other and f"{section}.{other}" not in given:
            messages.append(f"{self._describe_readers(other)}; set both if both are meant")
        return messages

    def _other_spelling(self, name: str, core: bool, mindspeed: bool) -> str | None:
        """Return another name of the setting that code in this tree also reads, or None."""
        for pair in SPELLING_PAIRS:
            other = pair.other_spelling(name)
            if name == pair.one and self._bridged:
                # The other adds a mask that is not compressed, and sizes that only MindSpeed's own arguments have
                # (flash_attention/generate_mask/generate_mask.py:65 and attention.py:141@e477249).
                return None
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

    def _describe_readers(self, name: str) -> str:
        field, read = self.core.get(name), self._in_mindspeed(name)
        readers = [f"Megatron-core ({field.where})"] if field else []
        readers += [f"MindSpeed ({read})"] if read else []
        return f"{' and '.join(readers)} {'read' if len(readers) > 1 else 'reads'} {name}"

    @cached_property
    def _drop_note(self) -> str:
        if "will be removed" in self._converter:
            return f"{_CONVERTER} drops it with a warning"
        return "see that the trainer takes it out before it builds Megatron-core's configuration"

    @cached_property
    def _passes_whole_mapping(self) -> bool:
        """Return whether verl passes all keys to MindSpeed before it builds a model, and known ones to Megatron-core.

        From verl 0.8 on MindSpeed itself keeps the others from Megatron-core, in transformer_config_init_wrapper
        (mindspeed/core/megatron_basic/arguments_basic.py@e477249).
        """
        passes = self.mindspeed.present if self._bridged else "will be removed" in self._converter
        text = read_source(self._code / (_ENGINE if self._bridged else _WORKERS)) or b""
        return passes and _REPATCH.search(text) is not None

    @cached_property
    def _drops_latent_fields(self) -> bool:
        """Return whether verl checks keys against TransformerConfig instead of the class it builds, as 0.5.0 does."""
        return "hasattr(TransformerConfig, key)" in self._converter

    @cached_property
    def _converter(self) -> str:
        return "" if self._bridged else read_source_text(self._code / _CONVERTER) or ""

    @cached_property
    def _bridged(self) -> bool:
        """Return whether a bridge builds Megatron's configuration instead of verl's converter."""
        return ONLY_BRIDGES.text in (read_source_text(self._code / ONLY_BRIDGES.file) or "")
