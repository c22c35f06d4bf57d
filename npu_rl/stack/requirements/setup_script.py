"""The requirements in a setup.py: its literals, and names of its module that have one. Nothing is run or followed."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection

from npu_rl.common.bounded import parse_python
from npu_rl.stack.requirements.reading import Reading, bounds_of, joined, python_bound

# req_file() of Megatron-LM up to 0.12: the one setup.py of the bundled stacks that alone leads to files with bounds.
_MEGATRON = re.compile(r'os\.getenv\("PY_ENV", "([\w.]+)"\)')


def read_setup_script(text: str, extras: Collection[str]) -> dict[str, Reading]:
    """Return the requirements of a setup.py by extra; "" has those without an extra.

    What a function, a file or the device decides is reported as unread, with its line.
    """
    try:
        found = _SetupCall(parse_python(text.encode("utf-8", "surrogatepass"))).readings(extras)
    except (ValueError, RecursionError) as error:
        return {"": Reading(unread=(str(error) or "nested too deeply",))}
    image = _MEGATRON.search(text)
    if image is not None and "install_requires" in "".join(found[""].unread):
        files = f"requirements/{image[1]}/requirements.txt", "megatron/core/requirements.txt"
        found[""] = Reading(found[""].bounds, includes=files)
    return found


class _SetupCall:
    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        stored = Counter(node.id for node in names if not isinstance(node.ctx, ast.Load))
        # x.append(...) and x[0] = ... change a list; its name is then unknown
        touched = {id(one.value) for one in nodes if isinstance(one, (ast.Attribute, ast.Subscript))}
        changed = {node.id for node in names if id(node) in touched}
        self._names = {
            node.targets[0].id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            if stored[node.targets[0].id] == 1 and node.targets[0].id not in changed
        }
        calls = [node for node in nodes if isinstance(node, ast.Call) and _is_setup(node.func)]
        if len(calls) != 1:
            raise ValueError(f"{len(calls)} calls of setup()")
        self._keywords = {keyword.arg: keyword.value for keyword in calls[0].keywords}

    def readings(self, extras: Collection[str]) -> dict[str, Reading]:
        computed = Reading(
            unread=("some keywords of setup() are computed",) if None in self._keywords else ()
        )
        python = self._value(self._keywords.get("python_requires", ast.Constant("")))
        if isinstance(python, ast.Constant) and isinstance(python.value, str):
            bound = python_bound(python.value, "python_requires")
        else:
            bound = _unread("python_requires", python)
        listed = self._listed(
            self._keywords.get("install_requires", ast.List([], lineno=0)), "install_requires"
        )
        found = {"": joined(bound, listed, computed)}
        table = self._value(self._keywords.get("extras_require", ast.Dict([], [])))
        for extra in extras:
            lists = zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ()
            of_extra = next((one for key, one in lists if _text(key) == extra), None)
            place = f"extra {extra}"
            found[extra] = self._listed(of_extra, place) if of_extra else _unread(place, table)
        return found

    def _value(self, node: ast.expr) -> ast.expr:
        """Return the expression that a name stands for."""
        for _ in self._names:
            if not isinstance(node, ast.Name) or node.id not in self._names:
                break
            node = self._names[node.id]
        return node

    def _listed(self, node: ast.expr, place: str) -> Reading:
        node = self._value(node)
        if not isinstance(node, (ast.List, ast.Tuple)):
            return _unread(place, node)
        entries = [_text(self._value(entry)) for entry in node.elts]
        texts = [text for text in entries if text is not None and text.strip() and not text.startswith("#")]
        missing = entries.count(None)
        unread = (f"{missing} of {len(entries)} entries of {place} are computed (line {node.lineno})",)
        return joined(bounds_of(texts, place), Reading(unread=unread if missing else ()))


def _is_setup(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    return name == "setup"


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _unread(place: str, node: ast.expr) -> Reading:
    line = getattr(node, "lineno", None)
    return Reading(unread=(f"{place} is computed" + (f" (line {line})" if line else ""),))
