"""The trainer's Hydra configuration, composed from its files without Hydra.

Follows Hydra 1.3: defaults lists with groups, packages, `_self_`, `optional` and `override`, and the
`# @package` line (hydra.cc/docs/1.3/advanced/defaults_list; hydra/core/default_element.py@v1.3.2).
Interpolations stay as text. What Hydra would only know at run time raises ConfigFault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.trainer_code.config_tree import ConfigEntry, ConfigFault, ConfigTree
from npu_rl.trainer_code.hydra_yaml import Branch, ConfigFile, Leaf, Node, read_config
from npu_rl.trainer_code.source_files import is_source

_GLOBAL = "_global_"


def compose_files(folder: Path, config: str, code: Path) -> ConfigTree:
    """Compose `config` ("ppo_trainer") from the files in `folder`; files are named relative to `code`.

    Raises ConfigFault for a file that is missing or that only Hydra can make sense of.
    """
    return _Composer(folder, code).compose(config.removesuffix(".yaml").removesuffix(".yml"))


@dataclass(frozen=True)
class _Wanted:
    """An entry of a defaults list. base: the group its parent is in. inside: its parent's package."""

    path: str
    package: str | None
    base: str
    inside: str
    where: str
    group: str | None = None  # for `group: option`
    optional: bool = False
    override: bool = False

    @property
    def absolute(self) -> bool:
        return self.path.startswith("/")

    @property
    def full(self) -> str:
        """The file below the configuration folder, without its suffix."""
        return self.path[1:] if self.absolute else _joined("/", self.base, self.path)

    @property
    def choice(self) -> str:
        """What `override` names: group@package."""
        assert self.group is not None
        group = self.group[1:] if self.absolute else _joined("/", self.base, self.group)
        default, package = group.replace("/", "."), self.final(None)
        return group if default == package else f"{group}@{package or _GLOBAL}"

    def final(self, header: str | None) -> str:
        """The package its content goes to."""
        package = self.package if self.package is not None else header
        if package is None:
            relative = self.group if self.group is not None else self.path.rpartition("/")[0]
            package = relative.removeprefix("/").replace("/", ".")
        elif "_group_" in package:
            package = f"{_GLOBAL}." + package.replace(
                "_group_", self.full.rpartition("/")[0].replace("/", ".")
            )
        joined = _joined(".", self.inside, package)
        cut = joined.rfind(_GLOBAL)
        return joined if cut < 0 else joined[cut + len(_GLOBAL) :].lstrip(".")


class _Composer:
    def __init__(self, folder: Path, code: Path) -> None:
        self._folders = [folder]
        self._code = code
        self._root = Branch("", 1)
        self._files: dict[str, ConfigFile] = {}
        self._overrides: dict[str, str | None] = {}

    def compose(self, config: str) -> ConfigTree:
        self._folders += self._search_path(config)
        wanted = _Wanted(config, None, "", "", self._shown(self._folders[0]))
        self._add(wanted, ())
        self._root.items.pop("hydra", None)
        return ConfigTree(dict(_flat(self._root, "")), tuple(self._files))

    def _add(self, wanted: _Wanted, above: tuple[str, ...]) -> None:
        if wanted.full in above:
            raise ConfigFault(f"its defaults come back to {wanted.full}", wanted.where)
        file = self._read(wanted)
        if file is None:
            return
        header = None if file.package is None else _joined(".", _GLOBAL, file.package.removeprefix(_GLOBAL))
        package, base = wanted.final(header), wanted.full.rpartition("/")[0]
        entries = list(self._defaults(file, base, package))
        for entry in entries:
            if entry is not None and entry.override:
                self._overrides.setdefault(entry.choice, entry.path.removeprefix(f"{entry.group}/") or None)
        if None not in entries:
            entries.append(None)
        for entry in entries:
            if entry is None:
                self._merge(file.body, package)
            elif not entry.override:
                self._child(entry, (*above, wanted.full))

    def _child(self, entry: _Wanted, above: tuple[str, ...]) -> None:
        """Follow one default, with the option an `override` chose for its group."""
        path = entry.path
        if entry.group is not None:
            option = self._overrides.get(entry.choice, path.removeprefix(f"{entry.group}/"))
            if not option:
                return
            path = f"{entry.group}/{option}"
        if "${" in path or "???" in path:
            raise ConfigFault(f"its defaults hold {path}, which only Hydra can resolve", entry.where)
        self._add(
            _Wanted(path, entry.package, entry.base, entry.inside, entry.where, entry.group, entry.optional),
            above,
        )

    def _defaults(self, file: ConfigFile, base: str, package: str) -> Iterator[_Wanted | None]:
        """The defaults list; None is `_self_`."""
        where = f"{file.name}:{file.defaults_line}"
        for item in file.defaults or []:
            if item == "_self_":
                yield None
            elif isinstance(item, str):
                path, _, given = item.partition("@")
                words = path.split()
                optional = "optional" in words[:-1]
                yield _Wanted(words[-1], _here(given), base, package, where, None, optional)
            elif isinstance(item, dict) and len(item) == 1:
                ((name, options),) = item.items()
                yield from self._group(str(name), options, base, package, where)
            else:
                raise ConfigFault(f"its defaults hold {item!r}, which is not a default", where)

    def _group(self, name: str, options: Any, base: str, package: str, where: str) -> Iterator[_Wanted]:
        *words, name = name.split()
        group, _, given = name.partition("@")
        several = isinstance(options, list)
        for option in options if several else [options]:
            path = f"{group}/{'' if option is None else option}"
            yield _Wanted(
                path,
                _here(given),
                base,
                package,
                where,
                None if several else group,
                "optional" in words,
                "override" in words,
            )

    def _read(self, wanted: _Wanted) -> ConfigFile | None:
        for folder in self._folders:
            path = folder / f"{wanted.full}.yaml"
            name = self._shown(path)
            if name in self._files:
                return self._files[name]
            if is_source(path):
                self._files[name] = read_config(path, name)
                return self._files[name]
        if wanted.optional:
            return None
        raise ConfigFault(f"there is no configuration {wanted.full}.yaml", wanted.where)

    def _search_path(self, config: str) -> list[Path]:
        """The folders `hydra.searchpath` of the first file adds, as paths in the code."""
        file = self._read(_Wanted(config, None, "", "", self._shown(self._folders[0])))
        node = file.body.items.get("hydra") if file else None
        search = node.items.get("searchpath") if isinstance(node, Branch) else None
        places = search.value if isinstance(search, Leaf) and isinstance(search.value, list) else []
        return [self._place(str(place)) for place in places]

    def _place(self, place: str) -> Path:
        kind, _, rest = place.partition("://")
        return self._code / (rest.replace(".", "/") if kind == "pkg" else rest or kind)

    def _merge(self, body: Branch, package: str) -> None:
        target = self._root
        for part in package.split(".") if package else []:
            child = target.items.get(part)
            if not isinstance(child, Branch):
                child = target.items[part] = Branch(body.file, body.line)
            target = child
        _merge(target, body)

    def _shown(self, path: Path) -> str:
        return path.relative_to(self._code).as_posix() if path.is_relative_to(self._code) else str(path)


def _merge(target: Branch, source: Branch) -> None:
    for name, node in source.items.items():
        old = target.items.get(name)
        if isinstance(node, Branch):
            if not isinstance(old, Branch):
                old = target.items[name] = Branch(node.file, node.line)
            _merge(old, node)
        else:
            target.items[name] = node


def _flat(branch: Branch, prefix: str) -> Iterator[tuple[str, ConfigEntry]]:
    for name, node in branch.items.items():
        key = _joined(".", prefix, name)
        yield key, _entry(node)
        if isinstance(node, Branch):
            yield from _flat(node, key)


def _entry(node: Node) -> ConfigEntry:
    if isinstance(node, Branch):
        return ConfigEntry(None, True, node.file, node.line)
    return ConfigEntry(node.value, False, node.file, node.line)


def _here(package: str) -> str | None:
    return "" if package == "_here_" else package or None


def _joined(mark: str, first: str, second: str) -> str:
    return f"{first}{mark}{second}" if first and second else first or second
