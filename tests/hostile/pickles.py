"""Pickles written opcode by opcode from trees of JSON values, which the mutator can break, and without what they name.

{"$": "module name", ...} is an instance with these attributes, {"call": [{"name": "module name"}, arguments...]} the
result of a call, {"tuple": [...]} a tuple, and {"pairs": [[key, value], ...]} a mapping with keys of any type.
"""

from __future__ import annotations

import pickle
from typing import Any

AT = "torch.distributed.checkpoint"


def pickled(tree: Any) -> bytes:
    """Return a pickle of protocol 2."""
    return b"\x80\x02" + _written(tree) + b"."


def _written(tree: Any) -> bytes:
    if isinstance(tree, list):
        return b"](" + b"".join(map(_written, tree)) + b"e"
    if not isinstance(tree, dict):
        return _scalar(tree)
    if isinstance(tree.get("name"), str) and len(tree) == 1:
        return _named(tree["name"])
    if isinstance(tree.get("tuple"), list):
        return b"(" + b"".join(map(_written, tree["tuple"])) + b"t"
    if isinstance(tree.get("call"), list) and tree["call"]:
        called, *arguments = tree["call"]
        return _written(called) + b"(" + b"".join(map(_written, arguments)) + b"tR"
    if isinstance(tree.get("$"), str):
        return _named(tree["$"]) + b")\x81" + _mapping({k: v for k, v in tree.items() if k != "$"}) + b"b"
    pairs = tree.get("pairs")
    if isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        return b"}(" + b"".join(_written(key) + _written(value) for key, value in pairs) + b"u"
    return _mapping(tree)


def _mapping(tree: dict[str, Any]) -> bytes:
    return b"}(" + b"".join(_scalar(key) + _written(value) for key, value in tree.items()) + b"u"


def _scalar(value: Any) -> bytes:
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        return b"X" + len(data).to_bytes(4, "little") + data
    return pickle.dumps(value, 2)[2:-1]  # without the protocol's opcode and the end's


def _named(text: str) -> bytes:
    module, _, name = text.partition(" ")
    return f"c{module}\n{name}\n".encode("utf-8", "surrogatepass")


def _size(*numbers: int) -> Any:
    return {"call": [{"name": "torch Size"}, {"tuple": list(numbers)}]}


def dist_metadata(shapes: dict[str, tuple[int, ...]], lengths: dict[str, int]) -> Any:
    """`.metadata` of a torch_dist checkpoint with one chunk for each tensor, in a file of its own: key.distcp."""
    stored: dict[str, Any] = {}
    places = []
    for key, shape in shapes.items():
        origin = _size(*(0 for _ in shape))
        chunk = {"$": f"{AT}.metadata ChunkStorageMetadata", "offsets": origin, "sizes": _size(*shape)}
        properties = {"$": f"{AT}.metadata TensorProperties", "dtype": {"name": "torch float32"}}
        stored[key] = {
            "$": f"{AT}.metadata TensorStorageMetadata",
            "properties": properties,
            "size": _size(*shape),
            "chunks": [chunk],
        }
        index = {"$": f"{AT}.metadata MetadataIndex", "fqn": key, "offset": origin, "index": 0}
        place = {"$": f"{AT}.filesystem _StorageInfo", "relative_path": f"{key}.distcp", "offset": 0}
        places.append([index, {**place, "length": lengths[key]}])
    return {
        "$": f"{AT}.metadata Metadata",
        "state_dict_metadata": stored,
        "planner_data": None,
        "storage_data": {"pairs": places},
    }
