"""Composition of the trainer's Hydra configuration from its files, without Hydra.

Follows Hydra 1.3: defaults lists with groups, packages, `_self_`, `optional` and `override`, and the `# @package`
line (hydra.cc/docs/1.3/advanced/defaults_list; hydra/core/default_element.py@v1.3.2). Interpolations stay as text,
except in a defaults list: verl 0.7.1 and newer have `actor: ${model_engine}_actor` below `model_engine: dp`. What Hydra
resolves only at run time raises ConfigFault.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import YAML_DEPTH
from npu_rl.recipes.trainer_code.config_tree import ConfigEntry, ConfigFault, ConfigTree
from npu_rl.recipes.trainer_code.hydra_yaml import ConfigFile, ConfigSection, ConfigValue, read_config
from npu_rl.recipes.trainer_code.source_files import is_source

_GLOBAL = "_global_"
_CHOICE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_MOST_FILES = 200  # of one configuration, each time it is taken; those of verl have 30


def compose_files(
    folder: Path, config: str, code: Path, choices: Mapping[str, str | None] | None = None
) -> ConfigTree:
    """Compose `config` ("ppo_trainer") from the files in `folder`; files are named relative to `code`.

    Args:
        choices: The option of groups that a command line sets, as in `model_engine=megatron`; a group that no defaults
            list has is ignored.

    Raises:
        ConfigFault: If a file is missing, or can be resolved only by Hydra.
    """
    return _Composer(folder, code, choices or {}).compose(config.removesuffix(".yaml").removesuffix(".yml"))


_Option = str | tuple[str, ...] | None


@dataclass(frozen=True)
class _Default:
    """An entry of a defaults list.

    Attributes:
        path: The file, below its group.
        package: The package that the entry names, if it does.
        base: The group of the parent.
        inside: The package of the parent.
        where: file:line of the entry.
        group: The group of an entry `group: option`.
        optional: Whether the file may be missing.
        override: Whether it only sets the option of another entry.
        options: The options of an entry `group: [option, ...]`.
    """

    path: str
    package: str | None
    base: str
    inside: str
    where: str
    group: str | None = None  # for `group: option`
    optional: bool = False
    override: bool = False
    options: tuple[str, ...] | None = None

    @property
    def absolute(self) -> bool:
        return self.path.startswith("/")

    @property
    def full(self) -> str:
        """The file below the configuration folder, without its suffix."""
        return self.path[1:] if self.absolute else _relative(self.base, self.path)

    @property
    def choice(self) -> str:
        """The name that `override` uses for the entry: group@package."""
        assert self.group is not None
        group = self.group[1:] if self.absolute else _relative(self.base, self.group)
        default, package = group.replace("/", "."), self.target_package(None)
        return group if default == package else f"{group}@{package or _GLOBAL}"

    @property
    def option(self) -> _Option:
        """The option of a group, or its list of options, or None."""
        return self.path.removeprefix(f"{self.group}/") or None if self.options is None else self.options

    def target_package(self, header: str | None) -> str:
        """Return the package that the entry's content is merged into."""
        package = self.package if self.package is not None else header
        if package is None:
            relative = self.group if self.group is not None else self.path.rpartition("/")[0]
            package = relative.removeprefix("/").replace("/", ".")
        elif "_group_" in package:
            group = self.full.rpartition("/")[0].replace("/", ".")
            package = f"{_GLOBAL}." + package.replace("_group_", group)
        joined = _join(".", self.inside, package)
        cut = joined.rfind(_GLOBAL)
        return joined if cut < 0 else joined[cut + len(_GLOBAL) :].lstrip(".")


class _Composer:
    def __init__(self, folder: Path, code: Path, choices: Mapping[str, str | None]) -> None:
        self._folders = [folder]
        self._code = code
        self._root = ConfigSection("", 1)
        self._files: dict[str, ConfigFile] = {}
        self._overrides: dict[str, _Option] = dict(choices)
        self._choices: dict[str, str] = {}
        self._added = 0

    def compose(self, config: str) -> ConfigTree:
        search_path = self._search_path(config)
        self._folders += [self._place(place) for place in search_path]
        wanted = _Default(config, None, "", "", self._display_name(self._folders[0]))
        self._add(wanted, ())
        self._root.items.pop("hydra", None)
        return ConfigTree(dict(_flatten(self._root, "")), tuple(self._files), search_path, self._choices)

    def _add(self, wanted: _Default, above: tuple[str, ...]) -> None:
        self._added += 1
        if self._added > _MOST_FILES:
            raise ConfigFault(f"its defaults take more than {_MOST_FILES} files", wanted.where)
        if wanted.full in above:
            raise ConfigFault(f"its defaults are circular: {wanted.full}", wanted.where)
        file = self._read(wanted)
        if file is None:
            return
        header = None if file.package is None else _join(".", _GLOBAL, file.package.removeprefix(_GLOBAL))
        package, base = wanted.target_package(header), wanted.full.rpartition("/")[0]
        entries = list(self._defaults(file, base, package))
        for entry in entries:
            if entry is not None and entry.override:
                self._overrides.setdefault(entry.choice, entry.option)
        chosen = self._chosen_options([entry for entry in entries if entry is not None])
        self._choices |= chosen
        if None not in entries:
            entries.append(None)
        for entry in entries:
            if entry is None:
                self._merge(file.body, package)
            elif not entry.override:
                self._add_default(entry, chosen, (*above, wanted.full))

    def _chosen_options(self, entries: Collection[_Default]) -> dict[str, str]:
        """Return the option of each group in one defaults list, without those that are interpolations themselves.

        Hydra resolves interpolations once the other entries of the list are known
        (hydra/_internal/defaults_list.py:_create_interpolation_map@v1.3.2).
        """
        groups = [entry for entry in entries if entry.group is not None and not entry.override]
        options = {entry.choice: self._overrides.get(entry.choice, entry.option) for entry in groups}
        single = {group: option for group, option in options.items() if isinstance(option, str)}
        return {group: option for group, option in single.items() if not _is_open(option)}

    def _add_default(self, entry: _Default, chosen: Mapping[str, str], above: tuple[str, ...]) -> None:
        """Add one default, with the option or options that an `override` chose for its group.

        Args:
            chosen: The options of the groups in the same defaults list.
        """
        paths = [entry.path]
        if entry.group is not None:
            option = self._overrides.get(entry.choice, entry.option)
            options = option if isinstance(option, tuple) else [option]
            paths = [f"{entry.group}/{one}" for one in options if one]
        for path in paths:
            resolved = _CHOICE.sub(lambda match: chosen.get(match[1], match[0]), path)
            if _is_open(resolved):
                raise ConfigFault(f"its defaults hold {path}, which only Hydra can resolve", entry.where)
            self._add(replace(entry, path=resolved), above)

    def _defaults(self, file: ConfigFile, base: str, package: str) -> Iterator[_Default | None]:
        """Yield the entries of the defaults list; None is `_self_`."""
        where = f"{file.name}:{file.defaults_line}"
        for item in file.defaults or []:
            if item == "_self_":
                yield None
            elif isinstance(item, str):
                path, _, given = item.partition("@")
                words = path.split() or [""]
                optional = "optional" in words[:-1]
                yield _Default(words[-1], _package_of(given), base, package, where, None, optional)
            elif isinstance(item, dict) and len(item) == 1:
                ((name, options),) = item.items()
                yield from self._group(str(name), options, base, package, where)
            else:
                raise ConfigFault(f"its defaults hold {item!r:.100}, which is not a default", where)

    def _group(self, name: str, options: Any, base: str, package: str, where: str) -> Iterator[_Default]:
        *words, name = name.split() or [""]
        group, _, given = name.partition("@")
        several = tuple(map(_text, options)) if isinstance(options, list) else None
        path = f"{group}/{'' if several is not None else _text(options)}"
        words_of = ("optional" in words, "override" in words)
        yield _Default(path, _package_of(given), base, package, where, group, *words_of, several)

    def _read(self, wanted: _Default) -> ConfigFile | None:
        for folder in self._folders:
            path = folder / f"{wanted.full}.yaml"
            name = self._display_name(path)
            if name in self._files:
                return self._files[name]
            if is_source(path):
                self._files[name] = read_config(path, name)
                return self._files[name]
        if wanted.optional:
            return None
        raise ConfigFault(f"missing configuration {wanted.full}.yaml", wanted.where)

    def _search_path(self, config: str) -> tuple[str, ...]:
        """Return the folders that the first file's `hydra.searchpath` adds."""
        file = self._read(_Default(config, None, "", "", self._display_name(self._folders[0])))
        node = file.body.items.get("hydra") if file else None
        search = node.items.get("searchpath") if isinstance(node, ConfigSection) else None
        places = search.value if isinstance(search, ConfigValue) and isinstance(search.value, list) else []
        return tuple(map(str, places))

    def _place(self, place: str) -> Path:
        """Return a folder of the search path, below the code."""
        kind, _, rest = place.partition("://")
        return self._code / (rest.replace(".", "/") if kind == "pkg" else rest or kind)

    def _merge(self, body: ConfigSection, package: str) -> None:
        target = self._root
        parts = package.split(".") if package else []
        if len(parts) > YAML_DEPTH:
            raise ConfigFault(f"its package has more than {YAML_DEPTH} levels", f"{body.file}:{body.line}")
        for part in parts:
            target = _section(target, part, body)
        _merge(target, body)

    def _display_name(self, path: Path) -> str:
        return path.relative_to(self._code).as_posix() if path.is_relative_to(self._code) else str(path)


def _merge(target: ConfigSection, source: ConfigSection) -> None:
    for name, node in source.items.items():
        if isinstance(node, ConfigSection):
            _merge(_section(target, name, node), node)
        else:
            target.items[name] = node


def _section(above: ConfigSection, name: str, source: ConfigSection) -> ConfigSection:
    """Return the section `name`, created with the source's place if it doesn't exist."""
    child = above.items.get(name)
    if not isinstance(child, ConfigSection):
        child = above.items[name] = ConfigSection(source.file, source.line)
    return child


def _flatten(branch: ConfigSection, prefix: str) -> Iterator[tuple[str, ConfigEntry]]:
    for name, node in branch.items.items():
        key = _join(".", prefix, name)
        value = None if isinstance(node, ConfigSection) else node.value
        yield key, ConfigEntry(value, isinstance(node, ConfigSection), node.file, node.line)
        if isinstance(node, ConfigSection):
            yield from _flatten(node, key)


def _relative(base: str, path: str) -> str:
    """Return a path below the configuration folder: `../optim/fsdp` of the group actor is optim/fsdp."""
    return posixpath.normpath(_join("/", base, path)) if ".." in path else _join("/", base, path)


def _text(option: object) -> str:
    return "" if option is None else str(option)


def _is_open(path: str) -> bool:
    """Return whether a path contains an interpolation or a missing value."""
    return "${" in path or "???" in path


def _package_of(package: str) -> str | None:
    return "" if package == "_here_" else package or None


def _join(mark: str, first: str, second: str) -> str:
    return f"{first}{mark}{second}" if first and second else first or second
