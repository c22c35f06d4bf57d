"""The adaptation switches of a tree or of the bundled patches, by slug."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from npu_rl.common.bundled import data_root, runtime_root
from npu_rl.common.environment_variables import VARIABLES
from npu_rl.recipes.trainer_code.source_files import line_numbers, read_source, read_source_text, source_texts
from npu_rl.recipes.trainer_code.syntax_nodes import last_name, text_of
from npu_rl.stack.patches.patch_header import HOW, parse_header

_SWITCH_READ = re.compile(r"\benabled\(\s*['\"]([a-z0-9-]+)['\"]")
_CHANGED = re.compile(r"^\+\+\+ b/(\S+\.py)$", re.M)
_RUNTIME = "npu_rl_runtime"
_PREFIX = "NPU_RL_"
_VARIABLE = re.compile(rf"{_PREFIX}[A-Z0-9_]+")
_VALUES = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}  # runtime/switches.py reads these


class GivenSwitch(NamedTuple):
    """A switch that is set for a run.

    Attributes:
        on: None for a variable's value that is neither yes nor no, with which the run ends.
        path: The key of the recipe or manifest that sets it; empty for a variable of the shell.
    """

    on: bool | None
    path: tuple[str, ...]


def given_switches(
    adaptations: Mapping[str, bool], environment: Mapping[str, str], shell: Mapping[str, str] = os.environ
) -> dict[str, GivenSwitch]:
    """Return a run's adaptation switches by slug, including unknown variables with npu-rl's prefix.

    Args:
        adaptations: Those of the recipe, which go before variables.
        environment: The manifest's variables with the recipe's over them.
        shell: The variables that a run inherits.
    """
    own = {variable.name for variable in VARIABLES}
    found = {
        name.removeprefix(_PREFIX).lower().replace("_", "-"): GivenSwitch(
            _VALUES.get(value.strip().lower()), ("env", name) if name in environment else ()
        )
        for name, value in {**shell, **environment}.items()
        if _VARIABLE.fullmatch(name) and name not in own and value.strip()
    }
    return found | {slug: GivenSwitch(on, ("adaptations", slug)) for slug, on in adaptations.items()}


def known_switches(code: Path | None, wanted: Collection[str] = ()) -> dict[str, str]:
    """Return the place that reads each switch, or the patch whose header names it, by slug.

    Args:
        code: The code folder; None stands for the runtime of this npu-rl.
        wanted: Slugs that may be switches of a user's own patch. For one that is unknown otherwise the whole tree is
            read, in about 0.2 s.
    """
    runtime = code / _RUNTIME if code else runtime_root()
    result = dict(_switches_in_headers(data_root() / "patchsets"))
    result.update(_switches_in_files(runtime.rglob("*.py"), runtime.parent))
    if code is not None and not result.keys() >= set(wanted):
        result = {**_switches_in_files(code.rglob("*.py"), code), **result}
    return result


def switches_without_patch(code: Path, slugs: Collection[str]) -> set[str]:
    """Return the adaptations that no file of a tree uses, so that their switches have no effect.

    Files that bundled patches change are read first, the whole tree only for what they don't show.
    """
    called = {slug: _calls_of(slug, code / _RUNTIME) for slug in slugs}

    def remaining(paths: Iterable[Path], missing: Collection[str]) -> set[str]:
        missing = set(missing)
        for path in paths:
            content = (read_source(path) or b"") if missing else b""
            if _RUNTIME.encode() in content or b"enabled(" in content or b"NPU_RL_" in content:
                missing -= {slug for slug in missing if called[slug].is_in(content)}
        return missing

    missing = remaining((code / name for slug in slugs for name in _changed_files(slug)), slugs)
    own = (path for path in code.rglob("*.py") if path.relative_to(code).parts[0] != _RUNTIME)
    return remaining(own, missing) if missing else missing


class _Calls(NamedTuple):
    """The use of an adaptation: its runtime module is imported, or its switch is read.

    Attributes:
        modules: Of the runtime.
    """

    slug: str
    modules: frozenset[str]

    def is_in(self, content: bytes) -> bool:
        """Return whether Python source uses the adaptation. Comments and strings that name it don't count."""
        names = (self.slug, self.variable, *self.modules)
        if not any(name.encode() in content for name in names):
            return False
        from npu_rl.common.bounded import syntax_tree

        tree = syntax_tree(content)
        return tree is not None and any(map(self._is_use, ast.walk(tree)))

    @property
    def variable(self) -> str:
        """The environment variable of the switch."""
        return _PREFIX + self.slug.upper().replace("-", "_")

    def _is_use(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Import):
            return any(self._is_module(alias.name) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            within = node.module or ""
            names = (f"{within}.{one.name}" for one in node.names)
            return self._is_module(within) or any(map(self._is_module, names))
        if isinstance(node, ast.Call):
            texts = list(map(text_of, node.args))
            return (last_name(node.func) == "enabled" and self.slug in texts[:1]) or self.variable in texts
        return isinstance(node, ast.Subscript) and getattr(node.slice, "value", None) == self.variable

    def _is_module(self, dotted: str) -> bool:
        package, _, rest = dotted.partition(".")
        return package == _RUNTIME and rest.partition(".")[0] in self.modules


def _calls_of(slug: str, runtime: Path) -> _Calls:
    reads = re.compile(rf"(?:^SLUG = |\benabled\(\s*)['\"]{slug}['\"]".encode(), re.M)
    modules = {
        path.relative_to(runtime).parts[0].removesuffix(".py")
        for path, content in source_texts(runtime.rglob("*.py")).items()
        if reads.search(content)
    }
    return _Calls(slug, frozenset(modules))


def _changed_files(slug: str) -> list[str]:
    """Return the files that bundled patches with an adaptation's switch change."""
    root = data_root()
    patches = [root / place for found, place in _switches_in_headers(root / "patchsets") if found == slug]
    return [name for patch in patches for name in _CHANGED.findall(read_source_text(patch) or "")]


def headers_of(place: Path) -> list[str]:
    """Return the header texts of a patchset's folder, or of one patch."""
    return [text for text, _ in _headers(place)]


def patched_switches(headers: Iterable[str]) -> dict[str, bool]:
    """Return the switches that the headers of patches name, and whether each is on by default."""
    found: dict[str, bool] = {}
    for header in map(parse_header, headers):
        off = header.fields.get(HOW, "").startswith("OFF unless")
        found.update(dict.fromkeys(header.switches, not off))
    return found


def _switches_in_files(paths: Iterable[Path], root: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(paths):
        content = read_source(path) or b""
        if b"enabled(" in content:
            text = content.decode("utf-8", "replace")
            matches = list(_SWITCH_READ.finditer(text))
            lines = line_numbers(text, (one.start() for one in matches))
            for match, line in zip(matches, lines, strict=True):
                found[match[1]] = f"{path.relative_to(root).as_posix()}:{line}"
    return found


def _switches_in_headers(folder: Path) -> list[tuple[str, str]]:
    return [(slug, place) for text, place in _headers(folder) for slug in parse_header(text).switches]


def _headers(folder: Path) -> Iterator[tuple[str, str]]:
    for path in [folder] if folder.is_file() else sorted(folder.rglob("*.patch")):
        header = (read_source_text(path) or "").partition("\ndiff --git")[0]
        yield header, path.relative_to(folder.parent).as_posix()
