"""Import of pyarrow, which the extra `data` installs, when it is needed."""

from __future__ import annotations

import shlex
import sys
from typing import Any

from npu_rl.common.errors import HostError


def pyarrow() -> tuple[Any, Any]:
    """Return the modules `pyarrow` and `pyarrow.parquet`. Raises HostError with the command that installs them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise HostError(
            "Reading and writing Parquet files needs pyarrow, which can't be imported here",
            where=sys.executable,
            why=str(error),
            hint=f"Install it: {shlex.quote(sys.executable)} -m pip install 'npu-rl[data]'",
        ) from error
    return pyarrow, pyarrow.parquet
