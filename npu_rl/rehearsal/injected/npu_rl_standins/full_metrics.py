"""Let verl's console logger print metrics with all their digits, which a rehearsal compares.

verl prints three decimals until 54c9b73 (verl/utils/logger/aggregate_logger.py:27): a learning rate of 1e-6 is 0.000,
and the limits on probabilities are as small as the rounding. Real: the metrics; later versions of verl print them so.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

from .used import count

_SMALL = 1.25e-7


def _install_in(module: Any) -> None:
    own = getattr(module, "concat_dict_to_str", None)
    if own is None or str(_SMALL) in own({"rate": _SMALL}, step=1):
        return

    def concat_dict_to_str(data: Mapping[str, object], step: int) -> str:
        count("verl.concat_dict_to_str: all digits")
        named = [
            f"{name}:{float(value)!r}" for name, value in data.items() if isinstance(value, numbers.Real)
        ]
        return " - ".join([f"step:{step}", *named])

    module.concat_dict_to_str = concat_dict_to_str


HOOKS = {"verl.utils.logger.aggregate_logger": _install_in}
