"""The calls in npu_rl that open, read or parse a file, found in the syntax trees."""

from __future__ import annotations

import ast

from tests.support import ROOT

PACKAGE = ROOT / "npu_rl"

BOUNDED = {
    *(
        "open_file",
        "read_file",
        "read_if_file",
        "read_json",
        "parse_json",
        "parse_python",
        "parse_toml",
        "parse_yaml",
        "require_bounded_yaml",
    ),  # npu_rl/common/bounded.py
    *("open_handle", "open_regular", "read_regular"),  # tensors/npu_rl_tensors/regular_file.py
    *("read_source", "read_source_text", "source_texts"),  # trainer_code/source_files.py
    *("read_bounded", "read_pickle", "Confined"),
}
"""Functions that read a stranger's file in bounded memory and time, by whatever module they are imported from."""

METHODS = {"open", "read_text", "read_bytes", "Unpickler", "fdopen"}
"""Methods that read a file, of whatever they are called on."""

READERS = {
    "ast": {"parse", "literal_eval"},
    "configparser": {"ConfigParser", "RawConfigParser"},
    "gzip": {"open", "GzipFile"},
    "json": {"load", "loads", "JSONDecoder"},
    "mmap": {"mmap"},
    "np": {"load", "fromfile", "memmap", "loadtxt"},
    "numpy": {"load", "fromfile", "memmap", "loadtxt"},
    "OmegaConf": {"load"},
    "omegaconf.OmegaConf": {"load"},
    "parquet": {"ParquetFile", "read_table", "read_schema", "read_metadata"},
    "pickle": {"load", "loads"},
    "pickletools": {"genops"},
    "safetensors": {"safe_open"},
    "shutil": {"copy", "copy2", "copyfile", "copytree"},
    "tarfile": {"open", "TarFile"},
    "tomllib": {"load", "loads"},
    "torch": {"load"},
    "yaml": {"load", "safe_load", "compose", "parse", "full_load", "load_all", "safe_load_all"},
    "zipfile": {"ZipFile", "is_zipfile"},
    "linecache": {"getline", "getlines"},
    "tokenize": {"open"},
    "codecs": {"open"},
    "sqlite3": {"connect"},
}
"""Functions that read a file or parse a text, by the name that their module has where they are called."""

OWN_METHODS = {"cls.open", "RunRecord.open", "lock_model.read_text"}  # of npu-rl's own classes and modules


def file_calls() -> dict[str, tuple[set[str], set[str]]]:
    """The bounded and the other calls of each module that has any, by its path below npu_rl."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        bounded, others = calls_in(ast.parse(path.read_text(encoding="utf-8")))
        if bounded or others:
            found[path.relative_to(PACKAGE).as_posix()] = (bounded, others)
    return found


def calls_in(tree: ast.Module) -> tuple[set[str], set[str]]:
    bounded, others = set(), set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        owner, _, last = name.rpartition(".")
        if last in BOUNDED:
            bounded.add(last)
        elif _reads(name, owner, last) and not _only_writes(node):
            others.add(name if owner in (*READERS, "os", "") else f".{last}")
    return bounded, others


def _reads(name: str, owner: str, last: str) -> bool:
    if name in OWN_METHODS:
        return False
    return name == "open" or (owner != "" and last in METHODS) or last in READERS.get(owner, ())


def _only_writes(call: ast.Call) -> bool:
    """Whether the mode or the flags of a call are literally those of a new file, or of a folder."""
    words = [*call.args, *(word.value for word in call.keywords)]
    modes = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    flags = {name.attr for word in words for name in ast.walk(word) if isinstance(name, ast.Attribute)}
    return (
        any(mode[:1] in ("w", "x", "a") and len(mode) <= 3 and "+" not in mode for mode in modes)
        or any("r+" in mode for mode in modes)
        or bool(flags & {"O_WRONLY", "O_DIRECTORY"})
    )
