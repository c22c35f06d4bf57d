"""Print columns of a Parquet file as JSON lines, in a process of its own with little memory.

    python parquet_child.py FILE COLUMNS COUNTED

COLUMNS and COUNTED are JSON lists of names. The first line is {"rows": N, "columns": [[NAME, TYPE], ...]}, then each
row is an object. Of a list in COUNTED its length is printed, and as little as possible is read. The last line is null,
or the text of an error. Dates and bytes are printed as text.

A few bytes of Parquet can unpack to any size. On Linux, this process gets no more address space than it has, the file's
size and ROOM; pyarrow then raises an error. Other systems have no such limit.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOM = 1 << 30  # bytes; DuckDB writes pages of up to 100 MB
BATCH = 100  # rows that are held at once


def limit_memory(room: int) -> None:
    """Limit what this process may allocate from now on; only on Linux."""
    if sys.platform == "linux":
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + room
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def lines(path: Path, columns: list[str], counted: list[str]) -> Iterator[object]:
    """Yield the facts of the file, and its rows."""
    import pyarrow.parquet

    limit_memory(path.stat().st_size + ROOM)
    with pyarrow.parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        yield {
            "rows": file.metadata.num_rows,
            "columns": [[one.name, str(one.type)] for one in file.schema_arrow],
        }
        wanted = [name for name in columns if name in names]
        wanted += [_shortest(file.schema, name) for name in counted if name in names]
        if len(set(names)) < len(names):
            return
        for batch in file.iter_batches(BATCH, columns=wanted, use_threads=False):
            rows: list[dict[str, Any]] = batch.to_pylist() if wanted else [{} for _ in range(batch.num_rows)]
            for row in rows:
                yield {name: _count(value) if name in counted else value for name, value in row.items()}


def _shortest(schema: Any, name: str) -> str:
    """Return the path of one stored column of a list: of images that of their paths, not of their bytes."""
    paths = [schema.column(index).path for index in range(len(schema))]
    own = [path for path in paths if path == name or path.startswith(f"{name}.")]
    return str(min(own, key=lambda path: path.endswith(".bytes")))


def _count(value: object) -> int:
    return len(value) if isinstance(value, list) else int(value is not None)


def main() -> None:
    """Print the lines."""
    path, columns, counted = sys.argv[1:]
    try:
        for line in lines(Path(path), json.loads(columns), json.loads(counted)):
            print(json.dumps(line, default=str))
        print("null", flush=True)
    except MemoryError:  # also pyarrow's
        print(json.dumps(f"Its rows unpack to more than {ROOM >> 20} MB at once."), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except Exception as error:  # noqa: BLE001  pyarrow raises errors of many classes for a damaged file
        print(json.dumps(f"{type(error).__name__}: {error}"[:300]), flush=True)


if __name__ == "__main__":
    main()
