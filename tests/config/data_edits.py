"""Places in the data of a YAML file, and copies with one of them changed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Place = tuple[Any, ...]


def places(value: object, path: Place = ()) -> Iterator[Place]:
    yield path
    items: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in items:
        yield from places(child, (*path, key))


def at(data: Any, path: Place) -> Any:
    for key in path:
        data = data[key]
    return data


def changed(data: Any, path: Place, value: Any) -> Any:
    result = copy.deepcopy(data)
    at(result, path[:-1])[path[-1]] = value
    return result


def without(data: Any, path: Place) -> Any:
    result = copy.deepcopy(data)
    del at(result, path[:-1])[path[-1]]
    return result
