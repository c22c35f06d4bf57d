"""Results as JSON types, for `--json` and the files of a record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


def plain_data(value: Any) -> Any:
    """Return a result as JSON types, with the secrets in its texts masked.

    A dataclass becomes the fields that its repr shows, below `ok` where that is a property of it. NaN and infinity,
    which JSON lacks, become None, and other objects their text.
    """
    from npu_rl.common.masking import masked_text

    if is_dataclass(value) and not isinstance(value, type):
        shown = {field.name: plain_data(getattr(value, field.name)) for field in fields(value) if field.repr}
        return {"ok": value.ok, **shown} if hasattr(value, "ok") else shown
    if hasattr(value, "_asdict"):
        return plain_data(value._asdict())
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {plain_data(key): plain_data(one) for key, one in value.items()}
    if isinstance(value, range):
        return [value.start, value.stop]
    if isinstance(value, list | tuple):
        return [plain_data(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, int) else masked_text(str(value))
