"""The requirements in a setup.py, read from its syntax tree without running it."""

from __future__ import annotations

import ast
from collections.abc import Collection

from npu_rl.common.bounded import parse_python
from npu_rl.stack.requirements.reading import Reading, bounds_of, joined, python_bound
from npu_rl.stack.requirements.script_names import FileLines, Unknown
from npu_rl.stack.requirements.script_values import ScriptValues


def read_setup_script(text: str, extras: Collection[str]) -> dict[str, Reading]:
    """Return the requirements of a setup.py by extra; "" has those without an extra.

    A list of a file's lines includes that file. A value that `ScriptValues` can't evaluate is reported as unread, with
    the line, and never guessed.
    """
    try:
        return _read(parse_python(text.encode("utf-8", "surrogatepass")), extras)
    except ValueError as error:
        return {"": Reading(unread=(str(error),))}
    except RecursionError:
        return {"": Reading(unread=("nested too deeply",))}


def _read(tree: ast.Module, extras: Collection[str]) -> dict[str, Reading]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_setup(node.func)]
    if len(calls) != 1:
        return {"": Reading(unread=(f"{len(calls)} calls of setup()",))}
    keywords = ScriptValues(tree, calls[0]).keywords
    unread = (f"some keywords of setup() are computed ({keywords['**']})",) if "**" in keywords else ()
    found = {
        "": joined(
            _python(keywords.get("python_requires", "")),
            _listed(keywords.get("install_requires", []), "install_requires"),
            Reading(unread=unread),
        )
    }
    for extra in extras:
        table = keywords.get("extras_require", {})
        missing = Unknown(ast.Name(id=extra, lineno=calls[0].lineno))
        value = table.get(extra, missing) if isinstance(table, dict) else table
        found[extra] = _listed(value, f"extra {extra}")
    return found


def _is_setup(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    return name == "setup"


def _python(value: object) -> Reading:
    if isinstance(value, str):
        return python_bound(value, "python_requires")
    return _unread("python_requires", value)


def _listed(value: object, place: str) -> Reading:
    if isinstance(value, str):
        value = value.splitlines()
    elif isinstance(value, FileLines):
        value = [value]
    if not isinstance(value, list) or (len(value) == 1 and isinstance(value[0], Unknown)):
        return _unread(place, value[0] if isinstance(value, list) else value)
    texts = [item for item in value if isinstance(item, str) and item.strip() and not item.startswith("#")]
    files = tuple(item.path for item in value if isinstance(item, FileLines))
    computed = [item for item in value if not isinstance(item, (str, FileLines))]
    unread: tuple[str, ...] = ()
    if computed:
        first = computed[0] if isinstance(computed[0], Unknown) else "not a text"
        unread = (f"{len(computed)} of {len(value)} entries of {place} are computed ({first})",)
    return joined(bounds_of(texts, place), Reading(includes=files, unread=unread))


def _unread(place: str, value: object) -> Reading:
    reason = value if isinstance(value, Unknown) else "not a list of texts"
    return Reading(unread=(f"{place} is computed ({reason})",))
